"""Rules of kind `mixture`: which values of its keys do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config.mixture import SINGLE, frame_skip, own_envs
from millpond.config.rules import Rule, Values, Violation
from millpond.sizes import nearest_divisors, nearest_multiples


def _modes(values: Values) -> Iterator[Violation]:
    mode, agents, own = values["mixture.mode"], values["mixture.agents"], values["mixture.own_fraction"]
    if mode in SINGLE and agents != 1:
        yield Violation(
            ("mixture.mode", "mixture.agents"),
            f"mixture.mode={mode} trains one agent, but mixture.agents={agents}",
            ({"mixture.agents": 1},),
        )
    if mode not in SINGLE and agents == 1:
        yield Violation(
            ("mixture.mode", "mixture.agents"),
            f"mixture.mode={mode} needs several agents, but mixture.agents=1",
            ({"mixture.agents": 4}, {"mixture.mode": "single-resets"}),
        )
    if mode != "live" and own:
        yield Violation(
            ("mixture.mode", "mixture.own_fraction"),
            f"mixture.own_fraction={own} has no effect with mixture.mode={mode}: the BigAgent acts only in mode live",
            ({"mixture.own_fraction": 0}, {"mixture.mode": "live"}),
        )
    if mode == "live" and own == 0:
        yield Violation(
            ("mixture.mode", "mixture.own_fraction"),
            "mixture.own_fraction=0 with mixture.mode=live: the BigAgent acts, too, so it needs a share of the env steps",
            ({"mixture.own_fraction": 1 / (agents + 1)},),
        )
    if mode == "live" and own_envs(values) % 1:
        total = agents * values["pqn.num_envs"]
        below = max(1, int(own_envs(values)))
        fixes = tuple({"mixture.own_fraction": count / (total + count)} for count in (below, below + 1))
        yield Violation(
            ("mixture.own_fraction", "mixture.agents", "pqn.num_envs"),
            f"mixture.own_fraction={own} next to {total} envs of the agents is {own_envs(values):g} envs, "
            f"not a whole number",
            fixes,
        )


def _ladder(values: Values) -> Iterator[Violation]:
    ladder, agents = values["mixture.epsilon_ladder"], values["mixture.agents"]
    if ladder is not None and len(ladder) != agents:
        filled = (*ladder, *([ladder[-1] if ladder else 0.1] * agents))[:agents]
        yield Violation(
            ("mixture.epsilon_ladder", "mixture.agents"),
            f"mixture.epsilon_ladder has {len(ladder)} values for mixture.agents={agents}",
            ({"mixture.epsilon_ladder": filled}, {"mixture.epsilon_ladder": None}),
        )


def _minibatches(values: Values) -> Iterator[Violation]:
    envs, steps, minibatches = values["pqn.num_envs"], values["pqn.num_steps"], values["pqn.num_minibatches"]
    if envs * steps % minibatches:
        yield Violation(
            ("pqn.num_minibatches", "pqn.num_envs", "pqn.num_steps"),
            f"pqn.num_minibatches={minibatches:,} does not divide a collection of {envs} envs x {steps} steps "
            f"= {envs * steps:,}",
            tuple({"pqn.num_minibatches": count} for count in nearest_divisors(minibatches, envs * steps)),
        )


def _ponds(values: Values) -> Iterator[Violation]:
    collection = values["pqn.num_envs"] * values["pqn.num_steps"]
    if values["mixture.pond_transitions"] < 2 * collection:
        yield Violation(
            ("mixture.pond_transitions", "pqn.num_envs", "pqn.num_steps"),
            f"mixture.pond_transitions={values['mixture.pond_transitions']:,} does not hold one collection of "
            f"{collection:,} transitions and as many final observations",
            ({"mixture.pond_transitions": 2 * collection},),
        )
    batch, n_step = values["dqn.batch_size"], max(values["dqn.n_step"], values["dqn.n_step_from"] or 1)
    if values["mixture.big_pond_transitions"] < batch + n_step:
        yield Violation(
            ("mixture.big_pond_transitions", "dqn.batch_size", "dqn.n_step"),
            f"mixture.big_pond_transitions={values['mixture.big_pond_transitions']:,} does not hold one batch of "
            f"dqn.batch_size={batch:,} with dqn.n_step={n_step}",
            ({"mixture.big_pond_transitions": batch + n_step},),
        )
    if values["mixture.mode"] == "live" and not own_envs(values) % 1:
        lanes = values["mixture.agents"] * values["pqn.num_envs"] + int(own_envs(values))
        needed = lanes * max(2 * values["pqn.num_steps"], values["env.frame_stack"] + n_step + 1)
        if values["mixture.big_pond_transitions"] < needed:
            yield Violation(
                ("mixture.big_pond_transitions", "mixture.agents", "pqn.num_envs", "pqn.num_steps"),
                f"mixture.big_pond_transitions={values['mixture.big_pond_transitions']:,} does not hold one collection "
                f"of all {lanes:,} envs with its final observations, as mixture.mode=live needs",
                ({"mixture.big_pond_transitions": needed},),
            )


def _replay_ratio(values: Values) -> Iterator[Violation]:
    ratio, updates = values["dqn.replay_ratio"], values["mixture.big_updates"]
    keys = ("dqn.replay_ratio", "mixture.big_updates")
    if ratio is not None and updates is not None:
        yield Violation(
            keys,
            f"dqn.replay_ratio={ratio:g} and mixture.big_updates={updates:,} both say how much the BigAgent learns; "
            f"one of them must be null",
            ({"mixture.big_updates": None}, {"dqn.replay_ratio": None}),
        )
    if ratio is None and updates is None:
        yield Violation(
            keys,
            "dqn.replay_ratio and mixture.big_updates are both null: one of them says how much the BigAgent learns",
            ({"dqn.replay_ratio": 1.0}, {"mixture.big_updates": 100}),
        )


def _target(values: Values) -> Iterator[Violation]:
    rounds, target = values["mixture.big_pond_rounds"], values["dqn.target"]
    if target != "n_step" and values["mixture.big_pond_transitions"] < values["dqn.block_steps"]:
        yield Violation(
            ("mixture.big_pond_transitions", "dqn.block_steps"),
            f"mixture.big_pond_transitions={values['mixture.big_pond_transitions']:,} does not hold one block of "
            f"dqn.block_steps={values['dqn.block_steps']:,}",
            (
                {"mixture.big_pond_transitions": values["dqn.block_steps"]},
                {"dqn.block_steps": values["mixture.big_pond_transitions"]},
            ),
        )
    if values["dqn.quantiles"] is not None and values["dqn.loss"] != "huber":
        yield Violation(
            ("dqn.quantiles", "dqn.loss"),
            f"dqn.quantiles={values['dqn.quantiles']} are learned with Huber's loss, not dqn.loss={values['dqn.loss']}",
            ({"dqn.loss": "huber"}, {"dqn.quantiles": None}),
        )
    if target == "n_step" and values["dqn.priority_exponent"]:
        yield Violation(
            ("dqn.priority_exponent", "dqn.target"),
            f"dqn.priority_exponent={values['dqn.priority_exponent']:g} needs dqn.target=q_lambda or retrace: a priority is "
            "how far Q is from such a return",
            ({"dqn.priority_exponent": 0}, {"dqn.target": "q_lambda"}),
        )
    if target != "n_step" and values["dqn.n_step_from"] is not None:
        yield Violation(
            ("dqn.n_step_from", "dqn.target"),
            f"dqn.n_step_from={values['dqn.n_step_from']:,} has no effect with dqn.target={target}, which has blocks",
            ({"dqn.n_step_from": None}, {"dqn.target": "n_step"}),
        )
    if values["dqn.gamma_from"] is not None and values["dqn.gamma"] == 1:
        yield Violation(
            ("dqn.gamma_from", "dqn.gamma"),
            f"dqn.gamma_from={values['dqn.gamma_from']:g} needs dqn.gamma below 1: 1 - gamma is annealed geometrically",
            ({"dqn.gamma_from": None}, {"dqn.gamma": 0.997}),
        )
    if rounds is None:
        return
    if target == "n_step":
        yield Violation(
            ("mixture.big_pond_rounds", "dqn.target"),
            f"mixture.big_pond_rounds={rounds} needs dqn.target=q_lambda or retrace; with n_step the BigPond is filled from "
            f"the whole lake",
            ({"mixture.big_pond_rounds": None}, {"dqn.target": "q_lambda"}),
        )
    if values["mixture.mode"] == "live":
        yield Violation(
            ("mixture.big_pond_rounds", "mixture.mode"),
            f"mixture.big_pond_rounds={rounds} has no effect with mixture.mode=live: the BigPond is a ring of the newest steps",
            ({"mixture.big_pond_rounds": None},),
        )


def _budget(values: Values) -> Iterator[Violation]:
    own = own_envs(values) if values["mixture.mode"] == "live" else 0.0
    if own % 1:
        return
    envs = values["mixture.agents"] * values["pqn.num_envs"] + int(own)
    frames = envs * values["pqn.num_steps"] * frame_skip(values)
    if values["mixture.total_frames"] < frames:
        yield Violation(
            ("mixture.total_frames", "mixture.agents", "pqn.num_envs", "pqn.num_steps", "env.atari.frame_skip"),
            f"mixture.total_frames={values['mixture.total_frames']:,} is less than one collection of all agents, "
            f"{frames:,} frames",
            ({"mixture.total_frames": frames},),
        )


def _one_agent_envs(values: Values) -> Iterator[Violation]:
    if values["env.num_agents"] != 1:
        yield Violation(
            ("env.num_agents",),
            f"env.num_agents={values['env.num_agents']:,}: PQN and DQN act for one agent per env",
            ({"env.num_agents": 1},),
        )


def _memory(values: Values) -> Iterator[Violation]:
    core, burn_in, block = values["policy.core"], values["dqn.burn_in"], values["dqn.block_steps"]
    if core == "mingru":
        yield Violation(
            ("policy.core",),
            "policy.core=mingru: Q-networks of a mixture have an LSTM, a GRU, or no memory",
            ({"policy.core": "none"}, {"policy.core": "gru"}),
        )
    if core == "none":
        if burn_in:
            yield Violation(
                ("dqn.burn_in", "policy.core"),
                f"dqn.burn_in={burn_in} has no effect with policy.core=none: there is no state to bring up to date",
                ({"dqn.burn_in": 0}, {"policy.core": "gru"}),
            )
        return
    envs, minibatches = values["pqn.num_envs"], values["pqn.num_minibatches"]
    if envs % minibatches:
        yield Violation(
            ("pqn.num_minibatches", "pqn.num_envs", "policy.core"),
            f"pqn.num_minibatches={minibatches:,} does not divide pqn.num_envs={envs}: with policy.core={core} a minibatch is "
            f"whole collections of some envs",
            tuple({"pqn.num_minibatches": count} for count in nearest_divisors(minibatches, envs)),
        )
    if values["mixture.mode"] == "single":
        return
    if values["dqn.target"] == "n_step":
        yield Violation(
            ("dqn.target", "policy.core"),
            f"dqn.target=n_step learns from steps out of order, and policy.core={core} needs sequences",
            ({"dqn.target": "q_lambda"}, {"policy.core": "none"}),
        )
    if burn_in >= block:
        yield Violation(
            ("dqn.burn_in", "dqn.block_steps"),
            f"dqn.burn_in={burn_in} leaves no step of dqn.block_steps={block} to learn from",
            ({"dqn.burn_in": block // 2}, {"dqn.block_steps": 2 * burn_in}),
        )
    elif values["dqn.batch_size"] % (block - burn_in):
        learned, batch = block - burn_in, values["dqn.batch_size"]
        yield Violation(
            ("dqn.batch_size", "dqn.block_steps", "dqn.burn_in"),
            f"dqn.batch_size={batch:,} is not a multiple of the {learned} steps of a block that are learned from "
            f"(dqn.block_steps={block} - dqn.burn_in={burn_in}): with policy.core={core} a batch is whole blocks",
            tuple({"dqn.batch_size": size} for size in nearest_multiples(batch, learned)),
        )
    for key in ("dqn.random_shift", "dqn.priority_exponent", "dqn.quantiles"):
        if values[key]:
            yield Violation(
                (key, "policy.core"),
                f"{key}={values[key]:g} is for networks without memory; policy.core={core}",
                ({key: None if key == "dqn.quantiles" else 0}, {"policy.core": "none"}),
            )


def _networks(values: Values) -> Iterator[Violation]:
    if values["policy.separate_critic"]:
        yield Violation(
            ("policy.separate_critic",),
            "policy.separate_critic=true: Q-networks of a mixture have no critic",
            ({"policy.separate_critic": False},),
        )
    if values["policy.target"] is not None:
        yield Violation(
            ("policy.target",),
            f"policy.target={values['policy.target']}: PQN and DQN learn action values, which custom policies do not have",
            ({"policy.target": None},),
        )


def _evaluation(values: Values) -> Iterator[Violation]:
    if values["eval.deterministic"] is False:
        yield Violation(
            ("eval.deterministic",),
            "eval.deterministic=false: Q-networks have no probabilities to sample actions from",
            ({"eval.deterministic": True}, {"eval.deterministic": None}),
        )


def _crashes(values: Values) -> Iterator[Violation]:
    if values["vector.on_crash"] != "stop":
        yield Violation(
            ("vector.on_crash",),
            f"vector.on_crash={values['vector.on_crash']}: a restarted env loses a step in the middle of a collection, "
            f"and the lake must hold every step",
            ({"vector.on_crash": "stop"},),
        )


RULES: tuple[Rule, ...] = (
    _modes,
    _ladder,
    _minibatches,
    _ponds,
    _replay_ratio,
    _target,
    _budget,
    _one_agent_envs,
    _networks,
    _memory,
    _evaluation,
    _crashes,
)
