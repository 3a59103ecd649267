"""Rules of kind `mixture`: what the modes need, and sizes that fit into one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millpond.config.violations import Violation
from millpond.sizes import nearest_divisors

Values = Mapping[str, Any]

SINGLE = ("single", "single-resets")


def frame_skip(values: Values) -> int:
    """Frames of one env step."""
    return int(values["env.atari.frame_skip"]) if values["env.id"].startswith("atari:") else 1


def own_envs(values: Values) -> float:
    """Envs of the BigAgent's own, so that its share of all env steps is own_fraction."""
    fraction = values["mixture.own_fraction"]
    return float(round(values["mixture.agents"] * values["pqn.num_envs"] * fraction / (1 - fraction), 9))


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
            f"mixture.mode={mode} mixes several agents, but mixture.agents=1",
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
            "mixture.mode=live with mixture.own_fraction=0: the BigAgent acts too, so it needs a share of the env steps",
            ({"mixture.own_fraction": 1 / (agents + 1)},),
        )
    if mode == "live" and own_envs(values) % 1:
        total = agents * values["pqn.num_envs"]
        below = max(1, int(own_envs(values)))
        fixes = tuple({"mixture.own_fraction": count / (total + count)} for count in (below, below + 1))
        yield Violation(
            ("mixture.own_fraction", "mixture.agents", "pqn.num_envs"),
            f"mixture.own_fraction={own} beside {total} envs of the agents would be {own_envs(values):g} envs, "
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
    batch, n_step = values["dqn.batch_size"], values["dqn.n_step"]
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
    ratio, mode = values["dqn.replay_ratio"], values["mixture.mode"]
    if ratio is not None and mode != "live":
        yield Violation(
            ("dqn.replay_ratio", "mixture.mode"),
            f"dqn.replay_ratio={ratio:g} has no effect with mixture.mode={mode}: the BigAgent acts only in mode live, "
            f"and learns mixture.big_updates times a round otherwise",
            ({"dqn.replay_ratio": None}, {"mixture.mode": "live"}),
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
            f"mixture.total_frames={values['mixture.total_frames']:,} is less than one collection of every agent, "
            f"{frames:,} frames",
            ({"mixture.total_frames": frames},),
        )


def _one_agent_envs(values: Values) -> Iterator[Violation]:
    if values["env.num_agents"] != 1:
        yield Violation(
            ("env.num_agents",),
            f"env.num_agents={values['env.num_agents']:,}: PQN and DQN act for one agent an env",
            ({"env.num_agents": 1},),
        )


def _networks(values: Values) -> Iterator[Violation]:
    if values["policy.core"] != "none":
        yield Violation(
            ("policy.core",),
            f"policy.core={values['policy.core']}: Q-networks of a mixture have no memory, since replay is not in order",
            ({"policy.core": "none"},),
        )
    if values["policy.target"] is not None:
        yield Violation(
            ("policy.target",),
            f"policy.target={values['policy.target']}: PQN and DQN learn action values, which policies do not have",
            ({"policy.target": None},),
        )


def _crashes(values: Values) -> Iterator[Violation]:
    if values["vector.on_crash"] != "stop":
        yield Violation(
            ("vector.on_crash",),
            f"vector.on_crash={values['vector.on_crash']}: the lake holds steps that were taken, and a restarted env "
            f"loses one in the middle of a collection",
            ({"vector.on_crash": "stop"},),
        )


RULES = [_modes, _ladder, _minibatches, _ponds, _replay_ratio, _budget, _one_agent_envs, _networks, _crashes]
