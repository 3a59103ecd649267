"""Each stage of a mixture's round alone, on the trainer's own envs, networks, ponds and lake, after rounds were run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from millpond.bench.choose import RandomSteps
from millpond.bench.lake import measure_lake
from millpond.bench.limits import Limits
from millpond.bench.operations import BACKWARD_TOO, operations
from millpond.bench.result import Stage
from millpond.bench.timing import Effort, Watch, median_seconds
from millpond.planner import MixturePlan
from millpond.planner.estimate import drawn_in_round
from millpond.replay import Steps
from millpond.replay.widths import row_bytes
from millpond.trainers.common.envs import make_spec
from millpond.trainers.mixture.ponds import Ponds, as_steps
from millpond.trainers.mixture.trainer import MixtureTrainer

LONG_REPEATS = 3  # of what takes seconds
UPDATES = 16  # of the BigAgent in one timing


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
    append, sample = measure_lake(spec, np.asarray(steps[0].observation), subject.limits, subject.effort, folder)
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
    updates = min(UPDATES, subject.effort.calls)
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
    """One collection of each agent, as ponds take it."""
    shape = make_spec(trainer.recipe.env, stacked=False).observation.shape
    return [
        as_steps(collection, frame_shape=shape, agent=number, round_number=0, policy_version=0)
        for number, collection in enumerate(trainer.group.collect())
    ]
