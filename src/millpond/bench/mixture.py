"""A bench of a mixture: parts of real rounds, scaled up to whole ones, then every stage of a round alone."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

from millpond.bench.limits import Limits
from millpond.bench.mixture_stages import MixtureSubject, measure_mixture_stages
from millpond.bench.result import Bench, Found, Iteration, Stage
from millpond.bench.timing import Effort, Spread, Watch, stop_in_time
from millpond.config import Loaded, MixtureRecipe
from millpond.planner import MixturePlan, plan_loaded
from millpond.planner.estimate import drawn_in_round
from millpond.record.jsonlines import Record, read_records
from millpond.sizes import divisors
from millpond.trainers.common.session import start_run
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
) -> Found:
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
    return Found(iteration, stages, "float32", f"{vector.backend} x {vector.num_workers}", sizes)


def kept_of_mixture(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
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
