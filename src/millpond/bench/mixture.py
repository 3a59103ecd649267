"""A bench of a mixture: parts of real rounds, scaled up to whole ones, then every stage of a round alone."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

import torch

from millpond.bench.limits import BACKWARD_TOO, Limits, operations
from millpond.bench.result import Bench, Iteration, KindBench, Measurement, Stage
from millpond.bench.stages import RandomSteps, measure_lake
from millpond.bench.timing import Effort, Spread, Watch, median_seconds, stop_in_time
from millpond.config import Loaded, MixtureRecipe
from millpond.planner import MixturePlan, plan_loaded
from millpond.planner.mixture.numbers import drawn_in_round
from millpond.plurals import plural
from millpond.record.jsonlines import Record, read_records
from millpond.replay import Schema, Steps
from millpond.replay.schema import row_bytes
from millpond.sizes import divisors
from millpond.trainers.common.envs import make_spec
from millpond.trainers.common.session import start_run
from millpond.trainers.mixture.ponds import Ponds
from millpond.trainers.mixture.trainer import UPDATES_A_PORTION, MixtureTrainer

ROUNDS, COLLECTIONS, UPDATES = 3, 4, 128
OBSERVED = 64 << 20  # bytes of observations in one collection, about: where they are images, fewer steps are taken
PHASES = ("collect", "pour", "learn", "fill", "train_big")


def mixture_settings(loaded: Loaded, effort: Effort) -> dict[str, Any]:
    """A part of each round: fewer collections, of fewer steps where these are images, and fewer updates."""
    recipe, plan = _planned(loaded)
    seen = plan.env_steps_per_collection * (plan.observation_bytes or 0)
    common = divisors(gcd(recipe.pqn.num_steps, recipe.pqn.num_minibatches))
    part = next((size for size in common if seen <= OBSERVED * size), common[-1])
    collections, rounds = min(COLLECTIONS, plan.collections_per_round), (effort.iterations or ROUNDS) + 1
    return {
        "pqn.num_steps": recipe.pqn.num_steps // part,
        "pqn.num_minibatches": recipe.pqn.num_minibatches // part,
        "mixture.collections_per_round": collections,
        "mixture.big_updates": min(UPDATES, recipe.mixture.big_updates),
        "mixture.total_frames": rounds * collections * plan.frames_per_collection // part,
        "trainer.total_iterations": rounds,  # the first one warms up
    }


def measure_mixture(
    wanted: Loaded, loaded: Loaded, limits: Limits | None, effort: Effort, folder: Path, watch: Watch
) -> Measurement:
    """`loaded` is what is run: parts of the rounds that are `wanted`, to which everything is scaled up."""
    whole, part = _planned(wanted)[1], _planned(loaded)[1]
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = MixtureTrainer(loaded, start_run(loaded, "bench"))
        try:
            stop_in_time(trainer.loop, "round", watch)
            trainer.train()
            iteration = measured_rounds(list(read_records(trainer.run.metrics_path)), whole, part, live=trainer.live)
            stages: tuple[Stage, ...] = ()
            if limits is not None:
                subject = MixtureSubject(trainer, whole, part, limits, effort, iteration.phases)
                stages = measure_mixture_stages(subject, folder, watch)
            vector = next(iter(trainer.players.vectors.values()))
        finally:
            trainer.close()
    sizes = {name: getattr(whole, name) for name in ("agents", "envs_per_agent", "collections_per_round")}
    sizes |= {"env_steps_per_round": whole.env_steps_per_round, "big_updates": whole.big_updates}
    sizes |= {"pqn_updates_per_round": whole.pqn_updates_per_round, "drawn": drawn_in_round(whole, whole.rounds)}
    return Measurement(iteration, stages, "float32", f"{vector.backend} x {vector.num_workers}", sizes)


def mixture_for_plans(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    """Sizes and seconds that plans estimate from."""
    sizes = {name: bench.sizes[name] for name in ("collections_per_round", "big_updates", "drawn")}
    return dict(sizes), {name: bench.iteration.phases[name] for name in (*PHASES, "other")}


def _planned(loaded: Loaded) -> tuple[MixtureRecipe, MixturePlan]:
    recipe, plan = loaded.recipe, plan_loaded(loaded).plan
    assert isinstance(recipe, MixtureRecipe)
    assert isinstance(plan, MixturePlan)
    return recipe, plan


def measured_rounds(records: list[Record], whole: MixturePlan, part: MixturePlan, *, live: bool) -> Iteration:
    """Every round but the first, scaled up."""
    apart = 0 if live or part.mode == "single" else -(-part.big_updates // UPDATES_A_PORTION)
    size = part.collections_per_round + apart
    rounds = [records[first : first + size] for first in range(0, len(records), size)]
    times = [_times(before[-1], now, whole, part) for before, now in pairwise(rounds)]
    return Iteration(
        Spread.of([sum(one.values()) for one in times]),
        {name: median(one[name] for one in times) for name in times[0]},
    )


def _times(before: Record, records: list[Record], whole: MixturePlan, part: MixturePlan) -> dict[str, float]:
    """Seconds by phase of the whole round that the records tell a part of. Evaluations are left out."""
    spent = {name: sum(record.get(f"time/{name}", 0.0) for record in records) for name in (*PHASES, "evaluate")}
    other = records[-1]["seconds"] - before["seconds"] - sum(spent.values())
    drawn = max((record.get("big/pond_transitions", 0.0) for record in records), default=0.0)
    steps = whole.env_steps_per_round / part.env_steps_per_round
    scales = dict.fromkeys(("collect", "pour", "learn"), steps)
    scales["fill"] = drawn_in_round(whole, whole.rounds) / drawn if drawn else 0.0
    scales["train_big"] = whole.big_updates / part.big_updates if part.big_updates else 0.0
    collections = whole.collections_per_round / part.collections_per_round
    return {**{name: spent[name] * scale for name, scale in scales.items()}, "other": max(0.0, other) * collections}


# -- Each stage of a mixture's round alone, on the trainer's own envs, networks, ponds and lake, after rounds were run.

LONG_REPEATS = 3  # of what takes seconds
UPDATES_TIMED = 16  # of the BigAgent in one timing


@dataclass(frozen=True)
class MixtureSubject:
    """What the stages are measured on. `whole` is the round that they are scaled up to, `part` what was run of it."""

    trainer: MixtureTrainer
    whole: MixturePlan
    part: MixturePlan
    limits: Limits
    effort: Effort
    phases: dict[str, float]  # of a whole round

    @property
    def repeats(self) -> int:
        return min(LONG_REPEATS, self.effort.repeats)

    @property
    def collections(self) -> float:
        """Collections as they were run, in a whole round."""
        return self.whole.env_steps_per_round / self.part.env_steps_per_collection

    def collect(self) -> None:
        self.trainer.group.collect()
        if self.trainer.big is not None:
            self.trainer.big.collect()

    def products(self, observations: float) -> float:
        """Seconds that forward passes over so many observations take at the limit."""
        network, seen = self.trainer.group.networks[0], self.trainer.group.storage.observation[0, 0]
        with torch.inference_mode():
            return operations(lambda: network(seen)) / len(seen) * observations / self.limits.float32


def measure_mixture_stages(subject: MixtureSubject, folder: Path, watch: Watch) -> tuple[Stage, ...]:
    """In the order of a round."""
    trainer = subject.trainer
    watch("envs")
    envs = _envs(subject)
    watch("collect")
    stages = [envs, _collect(subject, envs)]
    steps = _steps(trainer)
    if trainer.ponds is not None and not subject.part.own_envs:
        watch("pour")
        stages.append(_pour(subject, trainer.ponds, steps))
    watch("learn")
    stages.append(_learn(subject))
    if trainer.big is not None:
        if not trainer.live:
            watch("fill")
            stages.append(_fill(subject))
        watch("BigAgent")
        stages.append(_updates(subject))
    watch("the lake")
    spec = make_spec(trainer.recipe.env, stacked=False)
    append, sample = measure_lake(spec, steps[0].observation["observation"], subject.limits, subject.effort, folder)
    return (*stages, append, sample)


def _envs(subject: MixtureSubject) -> Stage:
    """All agents' envs behind recv and send, with actions at random."""
    whole, vectors = subject.whole, list(subject.trainer.players.vectors.values())
    times, envs = max(1, subject.effort.calls // 4), sum(vector.num_envs for vector in vectors)
    step = RandomSteps(vectors)
    seconds = median_seconds(lambda: step(times), subject.repeats) / (times * envs)
    step.rest()
    written = whole.env_steps_per_round * vectors[0].spec.observation.nbytes
    steps = whole.env_steps_per_round
    return Stage("envs", seconds * steps, steps, "env steps", "memory", written / subject.limits.memory)


def _collect(subject: MixtureSubject, envs: Stage) -> Stage:
    steps = subject.whole.env_steps_per_round
    seconds = median_seconds(subject.collect, subject.repeats) * subject.collections
    at_best = envs.alone + subject.products(steps)
    return Stage("collect", seconds, steps, "env steps", "envs, float32", at_best, subject.phases["collect"])


def _pour(subject: MixtureSubject, ponds: Ponds, steps: list[Steps]) -> Stage:
    """A collection into the ponds, and all of it into the lake, waited for."""

    def pour() -> None:
        ponds.add(steps)
        ponds.flush()

    seconds = median_seconds(pour, subject.repeats) * subject.collections
    lake, count = ponds.lake, subject.whole.env_steps_per_round
    stored = sum(path.stat().st_size for path in lake.folder.rglob("*") if path.is_file())
    rows = sum(lake.view(name).rows for name in lake.streams)
    at_best = stored / rows * count / subject.limits.disk_write
    return Stage("pour", seconds, count, "env steps", "disk", at_best, subject.phases["pour"])


def _learn(subject: MixtureSubject) -> Stage:
    """All updates of all agents on one collection; what is learned from is collected again before each."""
    trainer, whole = subject.trainer, subject.whole
    seconds = median_seconds(trainer.group.learn, subject.repeats, trainer.group.collect) * subject.collections
    trained = whole.agents * whole.transitions_per_collection * whole.collections_per_round * whole.pqn_replay_ratio
    at_best = subject.products(trained * BACKWARD_TOO)
    return Stage("learn", seconds, trained, "transitions", "float32", at_best, subject.phases["learn"])


def _fill(subject: MixtureSubject) -> Stage:
    """The BigPond from the lake as it is now, scaled up to as many transitions as are drawn in a run's last round."""
    big, whole = subject.trainer.big, subject.whole
    assert big is not None
    drawn: list[int] = []
    seconds = median_seconds(lambda: drawn.append(big.pond.fill(0)), subject.repeats)
    count = drawn_in_round(whole, whole.rounds)
    at_best = count * row_bytes(big.pond.lake.schema) / subject.limits.memory
    return Stage("fill", seconds * count / drawn[-1], count, "transitions", "memory", at_best, subject.phases["fill"])


def _updates(subject: MixtureSubject) -> Stage:
    """The BigAgent's gradient steps, each on a batch that is drawn from its pond."""
    big, whole, double = subject.trainer.big, subject.whole, subject.trainer.recipe.dqn.double
    assert big is not None
    updates = min(UPDATES_TIMED, subject.effort.calls)
    seconds = median_seconds(lambda: big.update(updates, lambda name, value: None), subject.effort.repeats) / updates
    trained = whole.big_updates * whole.big_batch_size
    at_best = subject.products(
        trained * (BACKWARD_TOO + 1 + double)
    )  # the target network, and perhaps Double DQN's choice
    return Stage(
        "BigAgent",
        seconds * whole.big_updates,
        trained,
        "transitions",
        "float32",
        at_best,
        subject.phases["train_big"],
    )


def _steps(trainer: MixtureTrainer) -> list[Steps]:
    """Return one collection of each agent, as ponds take it."""
    schema = Schema.from_spec(make_spec(trainer.recipe.env, stacked=False))
    return [collection.as_steps(schema, agent=number) for number, collection in enumerate(trainer.group.collect())]


def mixture_opening(sizes: dict[str, int], vector: str, precision: str) -> str:
    """The sizes of what was measured, in a sentence."""
    return (
        f"{plural(sizes['agents'], 'agent')} of {plural(sizes['envs_per_agent'], 'env')} ({vector}); a round: "
        f"{plural(sizes['collections_per_round'], 'collection')}, {plural(sizes['env_steps_per_round'], 'env step')}, "
        f"{plural(sizes['drawn'], 'transition')} drawn, {plural(sizes['big_updates'], 'update')} of the BigAgent"
    )


BENCH = KindBench(
    whole="round",
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
        "A part of a round is run and scaled up to a whole one. Alone: one round's work, or one call for the lake. "
        "Share: of the round; of the envs, their time alone. In a run ponds are poured out beside the learning, so they "
        "are waited for less than pouring takes alone. A second: env steps of envs, collect and pour, transitions else. "
        "The limit of collect is that of the envs and the products together."
    ),
    settings=mixture_settings,
    measure=measure_mixture,
    for_plans=mixture_for_plans,
    opening=mixture_opening,
    size=("env_steps_per_round", "env step"),
)
