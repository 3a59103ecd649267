"""The bench of reward learning: real cycles, then every stage of a batch and of acting alone."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from millpond.bench.measure import (
    FORWARD_AND_BACKWARD,
    Effort,
    Limits,
    Progress,
    Spread,
    Stage,
    count_flops,
    limit_seconds,
    median_seconds,
)
from millpond.bench.products import (
    BetweenRounds,
    Products,
    Repeated,
    dqn_update,
    loss_update,
    q_acting,
    sac_acting,
    sac_update,
)
from millpond.bench.run import Bench, Iteration, KindBench, Measurement, PlannedWork, Unit
from millpond.config import Loaded
from millpond.formatting import plural
from millpond.learners import SAC
from millpond.loop import Loop
from millpond.planner import RewardPlan, plan_loaded
from millpond.record.jsonlines import Record, read_records
from millpond.rewards.own_episodes import env_step_batch
from millpond.trainers.common.session import start_run
from millpond.trainers.reward.agent import RewardAgent
from millpond.trainers.reward.trainer import RewardTrainer

MEASURED_BATCHES = 20_000  # of all real cycles, approximately
MIN_CYCLES, MAX_CYCLES = 3, 10  # real cycles
PHASES = ("act", "train", "test")


def reward_settings(loaded: Loaded, effort: Effort) -> dict[str, Any]:
    """Return overrides for a few cycles in one epoch, of which the first is a warm-up."""
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, RewardPlan)
    count = effort.iterations or min(MAX_CYCLES, max(MIN_CYCLES, MEASURED_BATCHES // plan.batches_per_cycle))
    return {"reward.epochs": 1, "reward.cycles": count + 1, "trainer.total_iterations": None, "agent.test_episodes": 1}


def measure_reward(
    requested: Loaded, timed: Loaded, limits: Limits | None, effort: Effort, folder: Path, progress: Progress
) -> Measurement:
    """Measure a few cycles at the sizes of the requested recipe."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = RewardTrainer(timed, start_run(timed, "bench"))
        try:
            between = BetweenRounds(lambda: reward_products(trainer, effort), progress)
            trainer.loop.at_end("cycle", between)
            limit_seconds(trainer.loop, "cycle", progress)
            trainer.train()
            iteration = _cycles(list(read_records(trainer.run.metrics_path)), between.spent)
            iteration = replace(iteration, products=between.summary())
            stages = (
                () if limits is None else _stages(RewardSubject(trainer, iteration.phases, limits, effort), progress)
            )
        finally:
            trainer.close()
    plan, agent = trainer.plan, trainer.agent
    sizes = {"batches": plan.batches_per_cycle, "steps_per_batch": plan.steps_per_batch}
    sizes |= {"env_steps": plan.env_steps_per_cycle, "iterations": plan.iterations}
    vector = "no envs" if agent is None else f"{agent.vector.backend} x {agent.vector.num_workers}"
    return Measurement(iteration, stages, "float32", vector, sizes)


def reward_for_plans(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sizes and seconds that plans estimate from."""
    sizes: dict[str, float] = {name: bench.sizes[name] for name in ("batches", "env_steps")}
    return sizes, {name: bench.iteration.phases[name] for name in ("act", "train", "other")}


def reward_products(trainer: RewardTrainer, effort: Effort) -> list[Repeated]:
    """Return the products of a cycle: batches of the reward network, and in full mode those of the agent."""
    plan, agent, rng = trainer.plan, trainer.agent, np.random.default_rng(0)
    batches = loss_update(trainer.network, lambda: trainer.batches.loss(rng))
    learning = [Repeated("train", batches, plan.batches_per_cycle, effort.updates)]
    if agent is None:
        return learning
    acting, *updates = agent_products(trainer, agent)
    learning += [Repeated("train", update, plan.batches_per_cycle, effort.updates) for update in updates]
    return [Repeated("act", acting, plan.env_steps_per_cycle / agent.vector.num_envs, effort.calls), *learning]


def agent_products(trainer: RewardTrainer, agent: RewardAgent) -> list[Products]:
    """Return the products of acting once in all envs, of one gradient step and, if used, of predicting its rewards."""
    settings, learner, target = trainer.recipe.agent, agent.learner, trainer.target
    batch = agent.pond.sample(settings.batch_size, np.random.default_rng(0), gamma=settings.gamma)
    observation = batch.observation[: settings.num_envs]
    if isinstance(learner, SAC):
        products = [sac_acting(learner, observation), sac_update(learner, batch)]
    else:
        products = [q_acting(learner.network, observation), dqn_update(learner, batch)]
    if settings.learn_from == "predicted":
        steps = env_step_batch(batch.observation, batch.action, batch.next_observation, agent.inputs)
        with torch.no_grad():
            products.append(Products.of(lambda: target.reward(steps)))
    return products


def _cycles(records: list[Record], spent_between: Sequence[float]) -> Iteration:
    """Return every cycle but the first, without test rollouts, held-out metrics and the measurements in between."""
    times = []
    for (before, now), between in zip(pairwise(records), spent_between, strict=False):
        spent = {name: now.get(f"time/{name}", 0.0) for name in PHASES}
        other = now["seconds"] - before["seconds"] - between - sum(spent.values())
        times.append({"act": spent["act"], "train": spent["train"], "other": max(0.0, other)})
    return Iteration(
        Spread.of([sum(one.values()) for one in times]),
        {name: median(one[name] for one in times) for name in times[0]},
        {},
    )


@dataclass(frozen=True)
class RewardSubject:
    """Trainer that stages are measured with."""

    trainer: RewardTrainer
    phases: dict[str, float]  # seconds of a real cycle
    limits: Limits
    effort: Effort

    def of_batches(self, name: str, work: Callable[[], object], limit: str, at_best: float | None) -> Stage:
        """Measure work that is done once per batch; `at_best` are its seconds at the limit."""
        count, in_cycle = self.effort.calls, self.trainer.plan.batches_per_cycle

        def repeat() -> None:
            for _ in range(count):
                work()

        seconds = median_seconds(repeat, self.effort.repeats) / count
        best = None if at_best is None else at_best * in_cycle
        return Stage(name, seconds * in_cycle, in_cycle, "batches", limit, best)


def _stages(subject: RewardSubject, progress: Progress) -> tuple[Stage, ...]:
    trainer = subject.trainer
    batches, rng, memory = trainer.batches, np.random.default_rng(0), subject.limits.memory
    stages = []
    if trainer.agent is not None:
        progress("act")
        stages.append(_act(subject, trainer.agent))
    progress("sample, update, target")
    batch_bytes = sum(array.nbytes for array in batches.sample(rng).values())
    stages.append(subject.of_batches("sample", lambda: batches.sample(rng), "memory", batch_bytes / memory))
    products = count_flops(lambda: batches.loss(rng)) * FORWARD_AND_BACKWARD / subject.limits.float32
    update = subject.of_batches("update", trainer._update, "float32", products)
    alone = trainer.agent is None  # then the phase `train` contains nothing else
    stages += [replace(update, together=subject.phases["train"]) if alone else update, _target(subject)]
    if trainer.agent is not None:
        progress("agent update")
        agent = trainer.agent
        at_best = sum(map(count_flops, agent_products(trainer, agent)[1:])) / subject.limits.float32
        stages.append(subject.of_batches("agent update", lambda: agent.update(trainer.target), "float32", at_best))
    progress("record")
    return (*stages, _record(subject))


def _target(subject: RewardSubject) -> Stage:
    """Copy the network's parameters into the target network, once in `train_target` batches."""
    trainer, every = subject.trainer, subject.trainer.recipe.reward.train_target
    size = sum(parameter.nbytes for parameter in trainer.target.parameters())
    follow = subject.of_batches(
        "target", lambda: trainer.target.copy_from(trainer.network), "memory", size / every / subject.limits.memory
    )
    return replace(follow, alone=follow.alone / every)


def _act(subject: RewardSubject, agent: RewardAgent) -> Stage:
    """Run the agent's env steps of a cycle, including its policy."""
    trainer = subject.trainer
    each = trainer.recipe.agent.steps_per_iteration
    seconds = median_seconds(lambda: agent.act(each, at_random=False), subject.effort.repeats)
    steps = trainer.plan.env_steps_per_cycle
    return Stage("act", seconds * trainer.plan.iterations, steps, "env steps", "", None, subject.phases["act"])


def _record(subject: RewardSubject) -> Stage:
    """Run the loop and its records with empty batches."""
    plan, value = subject.trainer.plan, torch.tensor(0.5)

    def run() -> None:
        loop = Loop(cycle=1, iteration=plan.iterations, batch=plan.train_batches)
        loop.at_end("iteration", lambda ended: ended.moments["R_loss"].mean)
        loop.at_end("cycle", lambda ended: ended.means())
        for _ in loop.run():
            loop.record("R_loss", value)

    seconds = median_seconds(run, subject.effort.repeats)
    return Stage("record", seconds, plan.batches_per_cycle, "batches", "", None, subject.phases["other"])


def describe_reward(sizes: dict[str, int], vector: str, precision: str) -> str:
    """Return the sizes of the measured run in a sentence."""
    acting = f", {plural(sizes['env_steps'], 'env step')} ({vector})" if sizes["env_steps"] else ""
    return f"a cycle: {plural(sizes['batches'], 'batch')} of {plural(sizes['steps_per_batch'], 'step')}{acting}"


def reward_units(trainer: RewardTrainer) -> dict[str, Unit]:
    """Return the units that launches and copies are counted by."""
    units = {"update": Unit("train", trainer.counters.updates)}
    if trainer.agent is None:
        return units
    return {"group step": Unit("act", trainer.counters.env_steps // trainer.agent.vector.num_envs), **units}


def reward_work(plan: RewardPlan) -> PlannedWork:
    """Return the work of a plan; the number of updates per cycle is left out."""
    return PlannedWork({"update": (plan.steps_per_batch, 0)})


BENCH = KindBench(
    work=reward_work,
    level="cycle",
    phases={"act": "acting", "train": "batches", "other": "loop and records"},
    stages={"acting": "act", "batches": "update", "loop and records": "record"},
    notes=(
        "Alone: one cycle's work. Update is a batch as a run trains it, including sample and target. Share: of the cycle, "
        "without test rollouts. Per second: env steps for act, otherwise batches."
    ),
    settings=reward_settings,
    measure=measure_reward,
    for_plans=reward_for_plans,
    describe=describe_reward,
    size=("batches", "batch"),
    units=reward_units,
)
