"""The bench of a mixture: shortened real rounds, scaled up to full ones, then every stage of a round alone."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
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
    RandomSteps,
    Spread,
    Stage,
    count_flops,
    limit_seconds,
    measure_lake,
    median_seconds,
)
from millpond.bench.products import BetweenRounds, Repeated, dqn_update, pqn_update, q_acting
from millpond.bench.run import Bench, Iteration, KindBench, Measurement, PlannedWork, Unit
from millpond.config import Loaded, MixtureRecipe
from millpond.formatting import plural
from millpond.planner import MixturePlan, plan_loaded
from millpond.planner.mixture.numbers import drawn_in_round
from millpond.record.jsonlines import Record, read_records
from millpond.replay import Schema, Steps
from millpond.replay.schema import pond_record_bytes
from millpond.sizes import divisors
from millpond.trainers.common.envs import make_spec
from millpond.trainers.common.session import start_run
from millpond.trainers.mixture.ponds import Ponds
from millpond.trainers.mixture.trainer import UPDATES_PER_PORTION, MixtureTrainer

ROUNDS, COLLECTIONS, UPDATES = 3, 4, 128  # of the shortened run
MAX_COLLECTION_BYTES = 64 << 20  # of observations, approximately: a collection of images has fewer steps
LONG_REPEATS = 3  # of work that takes seconds
UPDATES_TIMED = 16  # of the BigAgent in one timing
PHASES = ("collect", "pour", "learn", "fill", "train_big")


def mixture_settings(loaded: Loaded, effort: Effort) -> dict[str, Any]:
    """Return overrides for shorter rounds: fewer collections, of fewer steps if observations are images, fewer updates."""
    recipe, plan = _planned(loaded)
    collection_bytes = plan.env_steps_per_collection * (plan.observation_bytes or 0)
    common = divisors(gcd(recipe.pqn.num_steps, recipe.pqn.num_minibatches))
    divisor = next((size for size in common if collection_bytes <= MAX_COLLECTION_BYTES * size), common[-1])
    collections, rounds = min(COLLECTIONS, plan.collections_per_round), (effort.iterations or ROUNDS) + 1
    return {
        "pqn.num_steps": recipe.pqn.num_steps // divisor,
        "pqn.num_minibatches": recipe.pqn.num_minibatches // divisor,
        "mixture.collections_per_round": collections,
        "mixture.big_updates": max(1, min(UPDATES, plan.big_updates)),
        "dqn.replay_ratio": None,
        "mixture.total_frames": rounds * collections * plan.frames_per_collection // divisor,
        "trainer.total_iterations": rounds,  # the first one is a warm-up
    }


def measure_mixture(
    requested: Loaded, timed: Loaded, limits: Limits | None, effort: Effort, folder: Path, progress: Progress
) -> Measurement:
    """Measure shortened rounds and scale everything up to the requested ones."""
    full, short = _planned(requested)[1], _planned(timed)[1]
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = MixtureTrainer(timed, start_run(timed, "bench"))
        try:
            between = BetweenRounds(lambda: mixture_products(trainer, full, effort), progress)
            trainer.loop.at_end("round", between)
            limit_seconds(trainer.loop, "round", progress)
            trainer.train()
            records = list(read_records(trainer.run.metrics_path))
            iteration = measured_rounds(records, full, short, live=trainer.live, spent_between=between.spent)
            iteration = replace(iteration, products=between.summary())
            stages: tuple[Stage, ...] = ()
            if limits is not None:
                subject = MixtureSubject(trainer, full, short, limits, effort, iteration.phases)
                stages = measure_mixture_stages(subject, folder, progress)
            vector = next(iter(trainer.players.vectors.values()))
        finally:
            trainer.close()
    sizes = {name: getattr(full, name) for name in ("agents", "envs_per_agent", "collections_per_round")}
    sizes |= {"env_steps_per_round": full.env_steps_per_round, "big_updates": full.big_updates}
    sizes |= {"pqn_updates_per_round": full.pqn_updates_per_round, "drawn": drawn_in_round(full, full.rounds)}
    return Measurement(iteration, stages, "float32", f"{vector.backend} x {vector.num_workers}", sizes)


def mixture_for_plans(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sizes and seconds that plans estimate from."""
    sizes = {name: bench.sizes[name] for name in ("collections_per_round", "big_updates", "drawn")}
    return dict(sizes), {name: bench.iteration.phases[name] for name in (*PHASES, "other")}


def _planned(loaded: Loaded) -> tuple[MixtureRecipe, MixturePlan]:
    recipe, plan = loaded.recipe, plan_loaded(loaded).plan
    assert isinstance(recipe, MixtureRecipe)
    assert isinstance(plan, MixturePlan)
    return recipe, plan


def mixture_products(trainer: MixtureTrainer, full: MixturePlan, effort: Effort) -> list[Repeated]:
    """Return the products of a full round: all agents act and learn, then the BigAgent learns."""
    group, big = trainer.group, trainer.big
    network, observation = group.networks[0], group.storage.observation[0]  # [T, E, ...]
    minibatch = observation.flatten(0, 1)[: full.minibatch_transitions]
    acting = Repeated(
        "collect", q_acting(network, observation[0]), full.env_steps_per_round / len(observation[0]), effort.calls
    )
    updates = full.agents * full.pqn_updates_per_round
    learning = Repeated("learn", pqn_update(network, minibatch), updates, effort.updates)
    if big is None:
        return [acting, learning]
    (batch,) = big.pond.sample(1, np.random.default_rng(0), n_step=big.dqn.n_step, gamma=big.dqn.gamma)
    return [acting, learning, Repeated("train_big", dqn_update(big.dqn, batch), full.big_updates, effort.updates)]


def measured_rounds(
    records: list[Record], full: MixturePlan, short: MixturePlan, *, live: bool, spent_between: Sequence[float]
) -> Iteration:
    """Return every round but the first, scaled up to a full one.

    `spent_between`  seconds of the measurements after each round, which are not part of the next one
    """
    big_agent_records = 0 if live or short.mode == "single" else -(-short.big_updates // UPDATES_PER_PORTION)
    size = short.collections_per_round + big_agent_records
    rounds = [records[first : first + size] for first in range(0, len(records), size)]
    times = [
        _times(before[-1], now, full, short, spent)
        for (before, now), spent in zip(pairwise(rounds), spent_between, strict=False)
    ]
    return Iteration(
        Spread.of([sum(one.values()) for one in times]),
        {name: median(one[name] for one in times) for name in times[0]},
        {},
    )


def _times(
    before: Record, records: list[Record], full: MixturePlan, short: MixturePlan, between: float
) -> dict[str, float]:
    """Return seconds by phase of a full round, from the records of a short one. Evaluations are excluded."""
    spent = {name: sum(record.get(f"time/{name}", 0.0) for record in records) for name in (*PHASES, "evaluate")}
    other = records[-1]["seconds"] - before["seconds"] - between - sum(spent.values())
    drawn = max((record.get("big/pond_transitions", 0.0) for record in records), default=0.0)
    steps = full.env_steps_per_round / short.env_steps_per_round
    scales = dict.fromkeys(("collect", "pour", "learn"), steps)
    scales["fill"] = drawn_in_round(full, full.rounds) / drawn if drawn else 0.0
    scales["train_big"] = full.big_updates / short.big_updates if short.big_updates else 0.0
    collections = full.collections_per_round / short.collections_per_round
    return {**{name: spent[name] * scale for name, scale in scales.items()}, "other": max(0.0, other) * collections}


@dataclass(frozen=True)
class MixtureSubject:
    """Trainer that stages are measured with. `full` is the round that they are scaled up to, `short` the one that was run."""

    trainer: MixtureTrainer
    full: MixturePlan
    short: MixturePlan
    limits: Limits
    effort: Effort
    phases: dict[str, float]  # seconds of a full round

    @property
    def repeats(self) -> int:
        return min(LONG_REPEATS, self.effort.repeats)

    @property
    def collections(self) -> float:
        """Number of collections of a full round, in units of the short run's."""
        return self.full.env_steps_per_round / self.short.env_steps_per_collection

    def collect(self) -> None:
        self.trainer.group.collect()
        if self.trainer.big is not None:
            self.trainer.big.collect()

    def products(self, observations: float) -> float:
        """Return the seconds of forward passes over so many observations at the limit."""
        network, observation = self.trainer.group.networks[0], self.trainer.group.storage.observation[0, 0]
        with torch.inference_mode():
            return count_flops(lambda: network(observation)) / len(observation) * observations / self.limits.float32


def measure_mixture_stages(subject: MixtureSubject, folder: Path, progress: Progress) -> tuple[Stage, ...]:
    """Return the stages in the order of a round."""
    trainer = subject.trainer
    progress("envs")
    envs = _envs(subject)
    progress("collect")
    stages = [envs, _collect(subject, envs)]
    steps = _steps(trainer)
    if trainer.ponds is not None and not subject.short.own_envs:
        progress("pour")
        stages.append(_pour(subject, trainer.ponds, steps))
    progress("learn")
    stages.append(_learn(subject))
    if trainer.big is not None:
        if not trainer.live:
            progress("fill")
            stages.append(_fill(subject))
        progress("BigAgent")
        stages.append(_updates(subject))
    progress("the lake")
    spec = make_spec(trainer.recipe.env, stacked=False)
    append, sample = measure_lake(spec, steps[0].observation["observation"], subject.limits, subject.effort, folder)
    return (*stages, append, sample)


def _envs(subject: MixtureSubject) -> Stage:
    """Step all agents' envs through recv and send, with random actions."""
    full, vectors = subject.full, list(subject.trainer.players.vectors.values())
    times, envs = max(1, subject.effort.calls // 4), sum(vector.num_envs for vector in vectors)
    step = RandomSteps(vectors)
    seconds = median_seconds(lambda: step(times), subject.repeats) / (times * envs)
    step.end_round()
    written = full.env_steps_per_round * vectors[0].spec.observation.nbytes
    steps = full.env_steps_per_round
    return Stage("envs", seconds * steps, steps, "env steps", "memory", written / subject.limits.memory)


def _collect(subject: MixtureSubject, envs: Stage) -> Stage:
    steps = subject.full.env_steps_per_round
    seconds = median_seconds(subject.collect, subject.repeats) * subject.collections
    at_best = envs.alone + subject.products(steps)
    return Stage("collect", seconds, steps, "env steps", "envs, float32", at_best, subject.phases["collect"])


def _pour(subject: MixtureSubject, ponds: Ponds, steps: list[Steps]) -> Stage:
    """Add a collection to the ponds, and wait until all of it is in the lake."""

    def pour() -> None:
        ponds.add(steps)
        ponds.flush()

    seconds = median_seconds(pour, subject.repeats) * subject.collections
    lake, count = ponds.lake, subject.full.env_steps_per_round
    stored = sum(path.stat().st_size for path in lake.folder.rglob("*") if path.is_file())
    rows = sum(lake.view(name).num_records for name in lake.streams)
    at_best = stored / rows * count / subject.limits.disk_write
    return Stage("pour", seconds, count, "env steps", "disk", at_best, subject.phases["pour"])


def _learn(subject: MixtureSubject) -> Stage:
    """Run all updates of all agents on one collection, with a new collection before each timing."""
    trainer, full = subject.trainer, subject.full
    seconds = median_seconds(trainer.group.learn, subject.repeats, trainer.group.collect) * subject.collections
    trained = full.agents * full.transitions_per_collection * full.collections_per_round * full.pqn_replay_ratio
    at_best = subject.products(trained * FORWARD_AND_BACKWARD)
    return Stage("learn", seconds, trained, "transitions", "float32", at_best, subject.phases["learn"])


def _fill(subject: MixtureSubject) -> Stage:
    """Fill the BigPond from the lake, scaled up to the number of transitions that the last round of a run draws."""
    big, full = subject.trainer.big, subject.full
    assert big is not None
    drawn: list[int] = []
    seconds = median_seconds(lambda: drawn.append(big.pond.fill(0)), subject.repeats)
    count = drawn_in_round(full, full.rounds)
    at_best = count * pond_record_bytes(big.pond.lake.schema) / subject.limits.memory
    return Stage("fill", seconds * count / drawn[-1], count, "transitions", "memory", at_best, subject.phases["fill"])


def _updates(subject: MixtureSubject) -> Stage:
    """Run gradient steps of the BigAgent, each on a batch drawn from its pond."""
    big, full, double = subject.trainer.big, subject.full, subject.trainer.recipe.dqn.double
    assert big is not None
    updates = min(UPDATES_TIMED, subject.effort.calls)
    seconds = median_seconds(lambda: big.update(updates, lambda name, value: None), subject.effort.repeats) / updates
    trained = full.big_updates * full.big_batch_size
    at_best = subject.products(
        trained * (FORWARD_AND_BACKWARD + 1 + double)
    )  # the target network, and perhaps Double DQN's choice
    return Stage(
        "BigAgent",
        seconds * full.big_updates,
        trained,
        "transitions",
        "float32",
        at_best,
        subject.phases["train_big"],
    )


def _steps(trainer: MixtureTrainer) -> list[Steps]:
    """Return one collection of each agent as steps for the ponds."""
    schema = Schema.from_spec(make_spec(trainer.recipe.env, stacked=False))
    return [collection.as_steps(schema, agent=number) for number, collection in enumerate(trainer.group.collect())]


def describe_mixture(sizes: dict[str, int], vector: str, precision: str) -> str:
    """Return the sizes of the measured run in a sentence."""
    return (
        f"{plural(sizes['agents'], 'agent')} of {plural(sizes['envs_per_agent'], 'env')} ({vector}); a round: "
        f"{plural(sizes['collections_per_round'], 'collection')}, {plural(sizes['env_steps_per_round'], 'env step')}, "
        f"{plural(sizes['drawn'], 'transition')} drawn, {plural(sizes['big_updates'], 'update')} of the BigAgent"
    )


def mixture_units(trainer: MixtureTrainer) -> dict[str, Unit]:
    """Return the units that launches and copies are counted by; agents that act together are one group."""
    group, counts = trainer.group, trainer.timer.entered()
    acts = group.config.num_steps * len(group.q.slices) * len(group.vectors[0])
    units = {
        "group step": Unit("collect", counts.get("collect", 0) * acts),
        "update": Unit("learn", counts.get("learn", 0) * group.updates_per_collection),
    }
    return units if trainer.big is None else {**units, "BigAgent step": Unit("train_big", trainer.big.dqn.updates)}


def mixture_work(plan: MixturePlan) -> PlannedWork:
    """Return the work of a round of a plan."""
    units: dict[str, tuple[float, float]] = {
        "group step": (plan.envs_per_agent, plan.env_steps_per_round / plan.envs_per_agent),
        "update": (plan.minibatch_transitions, plan.pqn_updates_per_round),
    }
    if plan.mode != "single":
        units["BigAgent step"] = plan.big_batch_size, plan.big_updates
    return PlannedWork(units, plan.env_steps_per_round)


BENCH = KindBench(
    work=mixture_work,
    level="round",
    phases={
        "collect": "collecting",
        "pour": "waiting for ponds",
        "learn": "learning",
        "fill": "filling the BigPond",
        "train_big": "BigAgent",
        "other": "reset and records",
    },
    stages={
        "collecting": "collect",
        "waiting for ponds": "pour",
        "learning": "learn",
        "filling the BigPond": "fill",
        "BigAgent": "BigAgent",
    },
    notes=(
        "A share of a round is run and scaled up to a full one. Alone: one round's work, or one call for the lake. "
        "Share: of the round (for envs, their time alone). In a run ponds are poured while agents learn, so the wait "
        "is shorter than pouring alone. Per second: env steps for envs, collect and pour, otherwise transitions. "
        "The limit of collect is that of envs and products together."
    ),
    settings=mixture_settings,
    measure=measure_mixture,
    for_plans=mixture_for_plans,
    describe=describe_mixture,
    size=("env_steps_per_round", "env step"),
    units=mixture_units,
)
