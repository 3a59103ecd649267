"""Numbers of envs that are NaN or infinite: one check of each collection, and the env, agent and step after a hit.

The check is a sum of each array, which is not finite if one number is not. Only after a hit are numbers looked at one by
one. Integer parts of observations are not checked.

N envs   A agents   S steps of a collection
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EpisodeStats
from millpond.envs.spec import EnvSpec, Part
from millpond.errors import MillpondError
from millpond.vector.layout import Batch
from millpond.vector.vector import Vector

Array = npt.NDArray[Any]
Field = Literal["observation", "final observation", "reward"]
ORDER: tuple[Field, ...] = ("final observation", "observation", "reward")  # of what one step returned


@dataclass(frozen=True)
class BadNumber:
    """A number of an env that is NaN or infinite. `env_steps`: steps of the env since its seed when it returned it."""

    field: Field
    env: int
    agent: int
    env_steps: int
    value: float
    part: str = ""  # of an observation with several parts, with the index in it


class NonFiniteEnvError(MillpondError):
    """An env returned a number that is NaN or infinite. Nothing was trained on it.

    `episode_step` is the step of its episode that returned it (0: reset), or None if that is unknown.
    """

    exit_code = 1  # the settings were valid: the environment failed

    def __init__(
        self, bad: BadNumber, vector: Vector, episode_step: int | None, others: int = 0, owner: str = ""
    ) -> None:
        self.bad, self.episode_step, self.owner = bad, episode_step, owner
        self.trace: dict[str, Array] = {}  # what the env returned in this collection, by name, [S, A, ...]
        self.env_id, self.seed = vector.spec.id, int(vector.seeds[bad.env])
        self.worker = vector.worker_of(bad.env)
        part = f" ({bad.part})" if bad.part else ""
        owned = f" of {owner}" if owner else ""
        agent = f" for agent {bad.agent}" if vector.spec.num_agents > 1 else ""
        stepped_by = "" if self.worker is None else f", {self.worker}"
        more = f", and {others:,} more such numbers after it" if others else ""
        at = "at a step that is unknown, since the env was restarted"
        if episode_step is not None:
            at = "at the reset" if episode_step == 0 else f"at step {episode_step:,} of its episode"
        super().__init__(
            f"env.id={self.env_id}: the {bad.field}{part} of env {bad.env}{owned}{agent} is {bad.value} {at} "
            f"(seed {self.seed}, {bad.env_steps:,} env steps after it was seeded{stepped_by}){more}"
        )


def float_parts(spec: EnvSpec) -> tuple[Part, ...]:
    """Return the parts of an observation that may be NaN."""
    return tuple(part for part in spec.observation.parts if np.dtype(part.dtype).kind == "f")


def is_finite(array: Array) -> bool:
    """Return True if every number is finite."""
    if array.dtype.kind != "f" or not array.size:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())  # a sum may overflow


class FiniteCheck:
    """Checks the collections of a vector: `begin`, then what was stored, then `raise_found`.

    `owner` is the name of the agent whose envs these are, if several agents have their own.
    """

    def __init__(self, vector: Vector, owner: str = "") -> None:
        self.vector, self.owner = vector, owner
        self._parts = float_parts(vector.spec)
        self._whole = bool(self._parts) and np.dtype(vector.spec.observation.dtype).kind == "f"
        self._several = len(vector.spec.observation.parts) > 1
        self._before = vector.env_steps.copy()
        self._restarts = vector.restarts.copy()
        self._found: list[BadNumber] = []
        # What was looked at: name, values [n, S, A, ...] and envs [n].
        self._stored: list[tuple[str, Array, Array]] = []

    @property
    def sees_observations(self) -> bool:
        """True if observations have parts that may be NaN."""
        return bool(self._parts)

    def begin(self) -> None:
        """Note the steps of each env before a collection."""
        self._before[:] = self.vector.env_steps
        self._restarts[:] = self.vector.restarts
        self._found.clear()
        self._stored.clear()

    def finite_observations(self, stored: Array) -> bool:
        """Return True if observations [..., *observation] are finite."""
        if self._whole:
            return is_finite(stored)
        return all(is_finite(values) for _, values in self._views(stored))

    def steps(self, field: Field, values: Array, envs: Sequence[int] | Array, first_step: int = 0) -> None:
        """Find the numbers of `envs` [n] in the steps from `first_step` of the collection on; values are [n, S, A, ...].

        An observation is what an action answers, so it was returned one step before the reward of that action.
        """
        self.keep(field, values, envs)
        later = 0 if field == "observation" else 1
        for part, index, value, where in self._bad(field, values):
            env = int(envs[where[0]])
            env_steps = int(self._before[env]) + first_step + where[1] + later
            if self._restarts[env] != self.vector.restarts[env]:
                env_steps = -1
            elif env_steps > self.vector.env_steps[env]:
                continue  # rows of an earlier collection, in one that failed
            self._found.append(BadNumber(field, env, where[2], env_steps, value, self._name(part, index)))

    def keep(self, name: str, values: Array, envs: Sequence[int] | Array) -> None:
        """Keep other values [n, S, A, ...] of a collection for the dump."""
        self._stored.append((name, values, np.asarray(envs)))

    @property
    def found(self) -> bool:
        """True if a number that is not finite was found in this collection."""
        return bool(self._found)

    def current(self, batch: Batch) -> None:
        """Find the numbers of the newest observations."""
        if self._parts and not self.finite_observations(batch.observation):
            self._now("observation", batch, batch.observation)

    def current_rewards(self, batch: Batch) -> None:
        """Find the numbers of the newest rewards."""
        if not is_finite(batch.reward):
            self._now("reward", batch, batch.reward)

    def final(self, stored: Array, envs: Array, agents: Array) -> None:
        """Find the numbers of final observations [k, *observation] that the newest step of these envs [k] returned."""
        if self._parts and not self.finite_observations(stored):
            for part, index, value, where in self._bad("final observation", stored[:, None, None]):
                env, agent = int(envs[where[0]]), int(agents[where[0]])
                steps = int(self.vector.env_steps[env])
                self._found.append(BadNumber("final observation", env, agent, steps, value, self._name(part, index)))

    def raise_found(self, episodes: Iterable[EpisodeStats]) -> None:
        """Raise for the first of the numbers that were found, if any. `episodes`: those that ended in the collection."""
        if self._found:
            self._raise(list(episodes))

    def _raise(self, episodes: list[EpisodeStats]) -> NoReturn:
        ages = {id(bad): int(self.vector.env_steps[bad.env]) - bad.env_steps for bad in self._found}
        first = min(self._found, key=lambda bad: (-ages[id(bad)], ORDER.index(bad.field), bad.env, bad.agent))
        same = {(bad.field, bad.env, bad.agent, bad.env_steps) for bad in self._found}
        ended = [episode.length for episode in episodes if episode.env == first.env]
        step = None
        if first.env_steps >= 0:
            step = episode_step(ages[id(first)], int(self.vector.episode_steps[first.env]), ended, first.field)
        error = NonFiniteEnvError(first, self.vector, step, others=len(same) - 1, owner=self.owner)
        error.trace = self._trace(first)
        raise error

    def _trace(self, bad: BadNumber) -> dict[str, Array]:
        """Return what is known of an env's steps in this collection, and the newest values of its buffers."""
        steps: dict[str, list[Array]] = {}
        for name, values, envs in self._stored:
            for index in np.flatnonzero(envs == bad.env):
                steps.setdefault(name, []).append(values[index])
        newest = {f"newest_{name}": array.copy() for name, array in self.vector.buffers_of(bad.env).items()}
        return {name.replace(" ", "_"): np.concatenate(parts) for name, parts in steps.items()} | newest

    def _now(self, field: Field, batch: Batch, values: Array) -> None:
        for part, index, value, where in self._bad(field, values[:, None]):
            env = batch.first + where[0]
            steps = int(self.vector.env_steps[env])
            self._found.append(BadNumber(field, env, where[2], steps, value, self._name(part, index)))

    def _views(self, stored: Array) -> Iterator[tuple[Part, Array]]:
        """Yield each part that may be NaN as an array [..., numbers]; no copy of contiguous observations."""
        shape = self.vector.spec.observation.shape
        lead = stored.shape[: stored.ndim - len(shape)]
        raw = np.ascontiguousarray(stored).reshape(*lead, -1).view(np.uint8)
        for part in self._parts:
            yield part, raw[..., part.offset : part.offset + part.nbytes].view(part.dtype)

    def _bad(self, field: Field, values: Array) -> Iterator[tuple[Part | None, int, float, tuple[int, int, int]]]:
        """Yield part, index in it, value and place [n, S, A] of the first bad number of each agent and step."""
        if field == "reward":
            for env, step, agent in np.argwhere(~np.isfinite(values)).tolist():
                yield None, 0, float(values[env, step, agent]), (env, step, agent)
            return
        for part, numbers in self._views(values):
            bad = ~np.isfinite(numbers)
            for env, step, agent in np.argwhere(bad.any(-1)).tolist():
                index = int(np.argmax(bad[env, step, agent]))
                yield part, index, float(numbers[env, step, agent, index]), (env, step, agent)

    def _name(self, part: Part | None, index: int) -> str:
        if part is None:
            return ""
        place = ", ".join(str(int(number)) for number in np.unravel_index(index, part.shape))
        return f"part {part.name!r}, index [{place}]" if self._several else f"index [{place}]"


def episode_step(age: int, steps: int, ended: Sequence[int], field: Field) -> int | None:
    """Return the step of its episode that returned a number, 0 for the reset; None if its episode is not known.

    `age`: env steps since then; `steps`: of the env's current episode; `ended`: lengths of its episodes before, oldest first.
    An episode's end is followed by the observation of a reset, so a step's last reward and the reset's observation have one
    age.
    """
    lengths = [*ended, steps]
    while lengths:
        step = lengths[-1] - age
        if step > 0 or (step == 0 and field == "observation"):
            return step
        age -= lengths.pop()
    return None
