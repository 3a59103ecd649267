"""One iteration of PPO in nine stages, from configuration to gradients, with the numbers of the run itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.planner.lines import number, size
from millpond.plurals import plural
from millpond.record import show_seconds
from millpond.report.chart import figure
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag
from millpond.report.phases import phase_seconds

NEEDED = ("num_envs", "segments", "bptt_horizon", "num_minibatches", "gradient_updates", "agent_steps")


@dataclass(frozen=True)
class IterationStage:
    """What happens, in which module, and this run's numbers: pairs of a name and a value."""

    title: str
    module: str
    words: str
    numbers: list[tuple[str, str]]


def nine_stages(facts: Facts) -> Block | None:
    """The stages one below the other, folded."""
    found = stages(facts)
    if not found:
        return None
    items = (tag("li", *_stage(stage)) for stage in found)
    intro = tag("p", "What one iteration of this run does, in order, and the module that does it.")
    return Block("One iteration in nine stages", join(intro, tag("ol", *items, class_="stages")), folded=True)


def _stage(stage: IterationStage) -> tuple[Markup, ...]:
    head = tag("h3", stage.title, " ", tag("code", stage.module))
    numbers = [[name, value] for name, value in stage.numbers]
    return head, tag("p", stage.words), table([], numbers)


def stages(facts: Facts) -> list[IterationStage]:
    """The nine stages; none where the plan is not there."""
    plan, setting = facts.plan, facts.setting
    if not set(NEEDED) <= plan.keys():
        return []
    makers: tuple[Callable[[Facts, Any, Any], IterationStage], ...] = (
        _configuration, _environments, _rows, _rollout, _advantages, _minibatches, _losses, _gradients, _repeat,
    )  # fmt: skip
    return [make(facts, plan, setting) for make in makers]


def _configuration(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    keys = (
        "num_workers",
        "batch_size",
        "minibatch_size",
        "bptt_horizon",
        "update_epochs",
        "async_factor",
        "batch_unit",
    )
    found = [(f"trainer.{key}", setting(f"trainer.{key}")) for key in keys]
    found += [(f"env.{key}", setting(f"env.{key}")) for key in ("id", "num_agents", "obs_size", "max_steps")]
    words = (
        "A recipe and its overrides become one typed config; the plan derives every other number before anything runs."
    )
    return IterationStage(
        "Configuration", "millpond.config, millpond.planner", words, [(k, _show(v)) for k, v in found if v]
    )


def _environments(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    words = "Envs in contiguous groups: while one group steps, another is with the policy. Each worker steps its share of both."
    trainer_envs = plan.get("trainer_envs", 0)  # plans of earlier versions know nothing of it
    beside = f"; {_show(trainer_envs)} in the trainer itself" if trainer_envs else ""
    return IterationStage(
        "Environments",
        "millpond.envs, millpond.vector",
        words,
        [
            ("envs", _show(plan["num_envs"])),
            ("groups", f"{plan['groups']} of {_show(plan['envs_per_group'])} envs"),
            ("workers", f"{plan['num_workers']}, {_show(plan['envs_per_worker'])} envs each{beside}"),
            ("agents", f"{_show(plan['total_agents'])}, {plan['num_agents']} an env"),
        ],
    )


def _rows(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    each = f"one env with {plan['num_agents']} agents" if plan["batch_unit"] == "env_steps" else "one agent"
    words = "Memory for all rows is taken once. A row holds consecutive steps of one env or agent, and the state it began with."
    return IterationStage(
        "Rows",
        "millpond.rollout.rows",
        words,
        [
            ("rows", f"{_show(plan['segments'])} of {plan['bptt_horizon']} steps of {each}"),
            ("bytes", size(plan["buffer_bytes"])),
            ("of these, observations", size(plan.get("observation_bytes") or 0)),
        ],
    )


def _rollout(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    top_up = plan.get("top_up_rows", 0)
    rounds = plural(plan["whole_rounds"], "whole round")
    told = f"{rounds}, then a top-up round for the last {plural(top_up, 'row')}" if top_up else rounds
    words = "Receive observations, run the policy, store, send actions, until every row is full, and all of the current policy."
    return IterationStage(
        "Rollout",
        "millpond.rollout.collect",
        words,
        [
            ("env steps", _show(plan["env_steps"])),
            ("agent steps", _show(plan["agent_steps"])),
            ("steps an env", f"{number(plan['steps_per_env'])} on average"),
            ("rounds", told),
            *_times(facts, "collect", "collect/infer", "collect/step", "collect/store"),
            *_metrics(facts, "episode_return", "reward_per_agent_step"),
        ],
    )


def _advantages(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    words = (
        "Backwards through each row: delta = r + gamma V(next) - V, A = delta + gamma lambda A(next). Terminated steps have no "
        "future, truncated ones take the value of their final observation, and a row's end that of the next step."
    )
    return IterationStage(
        "Advantages",
        "millpond.kernels.advantage",
        words,
        [
            ("gamma", _show(setting("ppo.gamma"))),
            ("lambda", _show(setting("ppo.gae_lambda"))),
            *_times(facts, "advantage"),
            *_metrics(facts, "explained_variance"),
        ],
    )


def _minibatches(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    words = "Rows are drawn into minibatches, steps within a row stay in order. Uniform sampling uses every row once an epoch."
    return IterationStage(
        "Minibatches",
        "millpond.rollout.sampling",
        words,
        [
            ("sampling", _show(setting("ppo.sampling"))),
            ("minibatches", f"{_show(plan['num_minibatches'])} of {_show(plan['minibatch_segments'])} rows"),
            ("epochs", _show(plan["update_epochs"])),
            ("agent steps a gradient", _show(plan["agent_steps_per_gradient"])),
        ],
    )


def _losses(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    words = (
        "The core is unrolled over each row from its stored state. Loss = policy (clipped) + "
        f"{_show(setting('ppo.vf_coef'))} value (clipped) - {_show(setting('ppo.ent_coef'))} entropy."
    )
    return IterationStage(
        "Losses",
        "millpond.policies, millpond.losses",
        words,
        [
            ("clip", f"{_show(setting('ppo.clip_coef'))}, values {_show(setting('ppo.vf_clip_coef'))}"),
            *_metrics(facts, "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"),
        ],
    )


def _gradients(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    words = "Backward pass, gradient clipped by its norm, one step of the optimiser a minibatch."
    return IterationStage(
        "Gradients",
        "millpond.trainers.ppo.update",
        words,
        [
            ("gradient updates", _show(plan["gradient_updates"])),
            ("optimiser", f"{setting('ppo.optimizer')}, learning rate {_show(setting('ppo.learning_rate'))}"),
            ("norm at most", _show(setting("ppo.max_grad_norm"))),
            *_times(facts, "train"),
            *_metrics(facts, "grad_norm"),
        ],
    )


def _repeat(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    words = "Metrics are recorded, the policy is evaluated and saved when that is due, and the next iteration begins."
    done = len(facts.records)
    best = facts.best
    return IterationStage(
        "Record, save, repeat",
        "millpond.loop, millpond.record, millpond.store",
        words,
        [
            ("iterations", f"{_show(done)} recorded of {_show(plan['iterations'])}"),
            ("checkpoint", _interval(setting("checkpoint.interval"))),
            ("evaluation", _interval(setting("eval.interval"))),
            *([("best checkpoint", f"after {plural(best.updates, 'update')}")] if best else []),
            *_metrics(facts, "agent_steps_per_second"),
        ],
    )


def _interval(interval: Any) -> str:
    return "at the end" if interval is None else f"every {plural(int(interval), 'iteration')}, and at the end"


def _times(facts: Facts, *phases: str) -> list[tuple[str, str]]:
    """Mean seconds of an iteration in each phase."""
    spent, count = phase_seconds(facts), max(1, len(facts.records))
    return [(f"time, {phase}", _seconds(spent[phase] / count)) for phase in phases if phase in spent]


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else show_seconds(seconds)


def _metrics(facts: Facts, *names: str) -> list[tuple[str, str]]:
    """A metric in the first record that has it, and in the last."""
    found = []
    for name in names:
        values = [record[name] for record in facts.records if name in record]
        if len(values) > 1:
            found.append((name, f"{figure(values[0])} at first, {figure(values[-1])} at last"))
        elif values:
            found.append((name, figure(values[0])))
    return found


def _show(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return number(value) if isinstance(value, int) else f"{value:g}"
