"""Real iterations, and between each two of them the bare arithmetic and the plain networks: all in the same minutes."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from millpond.bench.bare import Network, Ready, make_ready
from millpond.bench.reference import plain_networks
from millpond.bench.result import Arithmetic, Iteration
from millpond.bench.timing import Effort, Spread
from millpond.loop import Ended
from millpond.record.jsonlines import Record, read_records
from millpond.trainers.ppo.trainer import PPOTrainer

Pair = tuple[float, float]  # inference, training


@dataclass
class Between:
    """What is measured when an iteration has ended; the first time only warms up."""

    trainer: PPOTrainer
    networks: dict[str, Network]
    watch: Callable[[str], object]
    ready: list[Ready]
    found: dict[str, list[Pair]]
    took: list[float]

    def __call__(self, ended: Ended) -> None:
        began = time.monotonic()
        if not self.ready:
            self.ready.extend(make_ready(self.trainer))
        for name, network in self.networks.items():
            self.watch(f"arithmetic: {name}")
            self.found[name].append(network.seconds(self.ready))
        self.watch("an iteration")
        self.took.append(time.monotonic() - began)


def run_iterations(
    trainer: PPOTrainer, effort: Effort, watch: Callable[[str], object]
) -> tuple[Iteration, Network, list[Ready]]:
    """Train for as many iterations as the trainer's plan has, of which the first does not count."""
    own = Network.of_trainer(trainer, effort)
    plain = plain_networks(trainer, effort)
    networks = {"bare": own, **plain}
    between = Between(trainer, networks, watch, [], {name: [] for name in networks}, [])
    trainer.loop.at_end("iteration", between)
    watch("an iteration, to warm up")
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    records = list(read_records(trainer.run.metrics_path))
    times = [
        _times(before, after, took) for before, after, took in zip(records, records[1:], between.took, strict=False)
    ]
    real = [sum(seconds for name, seconds in one.items() if "/" not in name) for one in times]
    pairs = {name: found[1:] for name, found in between.found.items()}
    bare = [sum(pair) for pair in pairs["bare"]]
    return (
        Iteration(
            seconds=Spread.of(real),
            phases={name: median(one.get(name, 0.0) for one in times) for name in times[0]},
            bare=_arithmetic(pairs["bare"]),
            ratio=Spread.of([whole / part for whole, part in zip(real, bare, strict=True)]),
            references={name: _arithmetic(pairs[name]) for name in plain},
            reference_ratios={
                name: Spread.of([mine / sum(pair) for mine, pair in zip(bare, pairs[name], strict=True)])
                for name in plain
            },
        ),
        own,
        between.ready,
    )


def _times(before: Record, after: Record, between: float) -> dict[str, float]:
    """Seconds by phase of the iteration that `after` tells of. Evaluation, and what was measured between, are left out."""
    phases = {
        name.removeprefix("time/"): seconds
        for name, seconds in after.items()
        if name.startswith("time/") and not name.startswith("time/evaluate")
    }
    whole = after["seconds"] - before["seconds"] - between - after.get("time/evaluate", 0.0)
    inner = sum(seconds for name, seconds in phases.items() if name.startswith("collect/"))
    outer = sum(seconds for name, seconds in phases.items() if "/" not in name)
    return {**phases, "collect/rest": phases["collect"] - inner, "other": max(0.0, whole - outer)}


def _arithmetic(pairs: list[Pair]) -> Arithmetic:
    return Arithmetic(Spread.of([pair[0] for pair in pairs]), Spread.of([pair[1] for pair in pairs]))
