"""One iteration of PPO in nine stages, from configuration to gradients, with the numbers of the run itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.formatting import number, plural, size
from millpond.record import show_seconds
from millpond.report.chart import format_number
from millpond.report.curves import phase_seconds
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag

REQUIRED = ("num_envs", "segments", "bptt_horizon", "num_minibatches", "gradient_updates", "agent_steps")


@dataclass(frozen=True)
class IterationStage:
    """A stage of an iteration, the modules that implement it, and this run's numbers as pairs of name and value."""

    title: str
    module: str
    description: str
    numbers: list[tuple[str, str]]


def nine_stages(facts: Facts) -> Block | None:
    """Return the stages as a numbered list, folded."""
    items = [tag("li", *_html(stage)) for stage in stages(facts)]
    if not items:
        return None
    intro = tag("p", "What one iteration of this run does, in order, and the module that does it.")
    return Block("One iteration in nine stages", join(intro, tag("ol", *items, class_="stages")), folded=True)


def stages(facts: Facts) -> list[IterationStage]:
    """Return the nine stages; none if the plan is missing."""
    if not set(REQUIRED) <= facts.plan.keys():
        return []
    makers: tuple[Callable[[Facts, Any, Any], IterationStage], ...] = (
        _configuration, _environments, _rows, _rollout, _advantages, _minibatches, _losses, _gradients, _repeat,
    )  # fmt: skip
    return [make(facts, facts.plan, facts.setting) for make in makers]


def _html(stage: IterationStage) -> tuple[Markup, ...]:
    head = tag("h3", stage.title, " ", tag("code", stage.module))
    return head, tag("p", stage.description), table([], [list(pair) for pair in stage.numbers])


def _configuration(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    keys = (
        "trainer.num_workers", "trainer.batch_size", "trainer.minibatch_size", "trainer.bptt_horizon",
        "trainer.update_epochs", "trainer.async_factor", "trainer.batch_unit", "env.id", "env.num_agents",
        "env.obs_size", "env.max_steps",
    )  # fmt: skip
    return IterationStage(
        "Configuration",
        "millpond.config, millpond.planner",
        "A recipe and its overrides become one typed config; the plan derives every other number before anything runs.",
        [(key, _show(setting(key))) for key in keys if setting(key)],
    )


def _environments(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    trainer_envs = plan.get("trainer_envs", 0)  # not in plans of earlier versions
    in_trainer = f"; {_show(trainer_envs)} in the trainer process" if trainer_envs else ""
    return IterationStage(
        "Environments",
        "millpond.envs, millpond.vector",
        "Envs in contiguous groups: the policy computes actions for one group while another steps. "
        "Each worker steps its share of every group.",
        [
            ("envs", _show(plan["num_envs"])),
            ("groups", f"{plan['groups']} of {_show(plan['envs_per_group'])} envs"),
            ("workers", f"{plan['num_workers']}, {_show(plan['envs_per_worker'])} envs each{in_trainer}"),
            ("agents", f"{_show(plan['total_agents'])}, {plan['num_agents']} per env"),
        ],
    )


def _rows(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    owner = f"one env with {plan['num_agents']} agents" if plan["batch_unit"] == "env_steps" else "one agent"
    return IterationStage(
        "Rows",
        "millpond.rollout.rows",
        "Memory for all rows is allocated once. A row holds consecutive steps of one env or agent, "
        "and the recurrent state before its first step.",
        [
            ("rows", f"{_show(plan['segments'])} of {plan['bptt_horizon']} steps of {owner}"),
            ("bytes", size(plan["buffer_bytes"])),
            ("of these, observations", size(plan.get("observation_bytes") or 0)),
        ],
    )


def _rollout(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    top_up = plan.get("top_up_rows", 0)
    rounds = plural(plan["whole_rounds"], "whole round")
    if top_up:
        rounds += f", then a top-up round for the last {plural(top_up, 'row')}"
    return IterationStage(
        "Rollout",
        "millpond.rollout.collector",
        "Receive observations, run the policy, store, send actions, until every row is full with steps of the "
        "current policy.",
        [
            ("env steps", _show(plan["env_steps"])),
            ("agent steps", _show(plan["agent_steps"])),
            ("steps per env", f"{number(plan['steps_per_env'])} on average"),
            ("rounds", rounds),
            *_times(facts, "collect", "collect/infer", "collect/step", "collect/store"),
            *_metrics(facts, "episode_return", "reward_per_agent_step"),
        ],
    )


def _advantages(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    return IterationStage(
        "Advantages",
        "millpond.kernels.advantage",
        "Backwards through each row: delta = r + gamma V(next) - V, A = delta + gamma lambda A(next). Terminated steps "
        "have no future, truncated ones bootstrap from the value of their final observation, and the end of a row from "
        "that of the next step" + (", where A goes on" if setting("ppo.trace_end") == "iteration" else "") + ".",
        [
            ("gamma", _show(setting("ppo.gamma"))),
            ("lambda", _show(setting("ppo.gae_lambda"))),
            *_times(facts, "advantage"),
            *_metrics(facts, "explained_variance"),
        ],
    )


def _minibatches(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    return IterationStage(
        "Minibatches",
        "millpond.rollout.sampling",
        "Minibatches are drawn from the rows; steps within a row stay in order. Uniform sampling uses every row once "
        "per update epoch.",
        [
            ("sampling", _show(setting("ppo.sampling"))),
            ("minibatches", f"{_show(plan['num_minibatches'])} of {_show(plan['minibatch_segments'])} rows"),
            ("update epochs", _show(plan["update_epochs"])),
            ("agent steps per gradient", _show(plan["agent_steps_per_gradient"])),
        ],
    )


def _losses(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    return IterationStage(
        "Losses",
        "millpond.policies, millpond.losses",
        "The core is unrolled over each row from its stored state. Loss = policy (clipped) + "
        f"{_show(setting('ppo.vf_coef'))} value (clipped) - {_show(setting('ppo.ent_coef'))} entropy.",
        [
            ("clip", f"{_show(setting('ppo.clip_coef'))}, values {_show(setting('ppo.vf_clip_coef'))}"),
            *_metrics(facts, "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"),
        ],
    )


def _gradients(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    return IterationStage(
        "Gradients",
        "millpond.trainers.ppo.update",
        "Backward pass, gradient clipped by its norm, one optimiser step per minibatch.",
        [
            ("gradient updates", _show(plan["gradient_updates"])),
            ("optimiser", f"{setting('ppo.optimizer')}, learning rate {_show(setting('ppo.learning_rate'))}"),
            ("maximum norm", _show(setting("ppo.max_grad_norm"))),
            *_times(facts, "train"),
            *_metrics(facts, "grad_norm"),
        ],
    )


def _repeat(facts: Facts, plan: Any, setting: Any) -> IterationStage:
    best = facts.best
    return IterationStage(
        "Record, save, repeat",
        "millpond.loop, millpond.record, millpond.store",
        "Metrics are recorded, the policy is evaluated and saved when due, and the next iteration begins.",
        [
            ("iterations", f"{_show(len(facts.records))} recorded of {_show(plan['iterations'])}"),
            ("checkpoint", _interval(setting("checkpoint.interval"))),
            ("evaluation", _interval(setting("eval.interval"))),
            *([("best checkpoint", f"after {plural(best.updates, 'update')}")] if best else []),
            *_metrics(facts, "agent_steps_per_second"),
        ],
    )


def _interval(interval: Any) -> str:
    return "at the end" if interval is None else f"every {plural(int(interval), 'iteration')}, and at the end"


def _times(facts: Facts, *phases: str) -> list[tuple[str, str]]:
    """Return the mean seconds per iteration of each phase."""
    spent, count = phase_seconds(facts), max(1, len(facts.records))
    return [(f"time, {phase}", _seconds(spent[phase] / count)) for phase in phases if phase in spent]


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else show_seconds(seconds)


def _metrics(facts: Facts, *names: str) -> list[tuple[str, str]]:
    """Return each metric in the first record that has it, and in the last."""
    pairs = []
    for name in names:
        values = [record[name] for record in facts.records if name in record]
        if len(values) > 1:
            pairs.append((name, f"{format_number(values[0])} at first, {format_number(values[-1])} at last"))
        elif values:
            pairs.append((name, format_number(values[0])))
    return pairs


def _show(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return number(value) if isinstance(value, int) else f"{value:g}"
