"""The recorded episodes of a config: opened, checked against what it says of them, and split by episode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from millpond.config import RewardRecipe
from millpond.data import DataError, Episodes, Finding, audit, open_episodes, refuse_unfit
from millpond.planner.lines import sentence
from millpond.plurals import plural
from millpond.rewards.source import inputs_of

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Recorded:
    """Episodes to train on and episodes to judge by, as numbers into `data`."""

    data: Episodes
    training: Integers
    held_out: Integers
    others: Episodes | None  # of another task

    @cached_property
    def findings(self) -> list[Finding]:
        """The audit of the data, done once."""
        return audit(self.data)

    def describe(self) -> list[str]:
        """What is trained on, in words."""
        data = self.data
        text = (
            f"data: {data.path}, {plural(len(data), 'episode')} with {plural(data.total_steps, 'step')}; "
            f"{len(self.training):,} to train on, {len(self.held_out):,} held out"
        )
        left = len(data) - len(self.training) - len(self.held_out)
        if left:
            text += f", {left:,} left out because they failed"
        if self.others is not None:
            text += f"; {plural(len(self.others), 'episode')} of another task from {self.others.path}"
        return sentence(f"{text}.", 0)


def open_recorded(recipe: RewardRecipe) -> Recorded:
    """Open and check everything that a run will read; errors name the key and the fix. Vectors are read once, here."""
    data = _open(recipe, recipe.data.path)
    _check_expected(recipe, data)
    refuse_unfit(data, recipe.reward.objective)
    others = None
    if recipe.reward.negatives is not None:
        others = _open(recipe, recipe.reward.negatives)
        _check_others(recipe, data, others)
    training, held_out = split_episodes(len(data), recipe.data.holdout, recipe.data.held_out, recipe.seed)
    if recipe.reward.objective == "progress" and data.success is not None:
        training = training[data.success[training]]  # a failure makes no progress towards the end
    if not len(training):
        raise DataError(
            f"{data.path}: no episode is left to train on ({len(data):,} in all, {len(held_out):,} held out); lower "
            f"data.holdout={recipe.data.holdout}, or bring more episodes"
        )
    data.hold_vectors()
    return Recorded(data, training, held_out, others)


def audit_recorded(recipe: RewardRecipe, recorded: Recorded) -> list[Finding]:
    """Warnings of the audit. What would make the training meaningless is refused: broken data, and a clock for progress."""
    for finding in recorded.findings:
        clock = finding.code == "clock-column" and recipe.reward.objective in ("progress", "success")
        if clock:
            columns = ",".join((*recipe.data.drop_columns, *finding.where))
            raise DataError(
                f"{recorded.data.path}: {finding.what}; with reward.objective={recipe.reward.objective} the network would "
                f"read the time from it and nothing else; set data.drop_columns=[{columns}]"
            )
        if finding.severity == "error":
            raise DataError(f"{recorded.data.path}: {finding.what}: {finding.meaning}; {finding.fix}")
    return [finding for finding in recorded.findings if finding.severity == "warning"]


def split_episodes(episodes: int, holdout: float, named: tuple[int, ...], seed: int) -> tuple[Integers, Integers]:
    """Episodes to train on and held-out ones: those named, or a share drawn by a generator of the split's own."""
    if named:
        beyond = [number for number in named if number >= episodes]
        if beyond:
            raise DataError(f"data.held_out names episode {beyond[0]}; there are {episodes:,}, counted from 0")
        held_out = np.unique(np.array(named, np.int64))
    else:
        shuffled = np.random.default_rng([seed, 0xE915]).permutation(episodes)
        held_out = np.sort(shuffled[: round(episodes * holdout)])
    return np.setdiff1d(np.arange(episodes), held_out), held_out


def _open(recipe: RewardRecipe, path: str) -> Episodes:
    data = recipe.data
    return open_episodes(
        path,
        data.observation_keys,
        data.images,
        drop_columns=data.drop_columns,
        memory_bytes=data.memory_bytes,
    )


def _check_expected(recipe: RewardRecipe, data: Episodes) -> None:
    for key, expected, found in (
        ("data.expected_episodes", recipe.data.expected_episodes, len(data)),
        ("data.expected_steps", recipe.data.expected_steps, data.total_steps),
    ):
        if expected is not None and expected != found:
            raise DataError(f"{key}={expected:,}, but {data.path} has {found:,}; set {key}={found} or {key}=null")


def _check_others(recipe: RewardRecipe, data: Episodes, others: Episodes) -> None:
    if recipe.reward.objective != "progress":
        raise DataError(
            f"reward.negatives={recipe.reward.negatives} goes with reward.objective=progress, not "
            f"{recipe.reward.objective}; set reward.negatives=null"
        )
    if others.columns != data.columns or inputs_of(others).images != inputs_of(data).images:
        raise DataError(
            f"reward.negatives={recipe.reward.negatives} has the observations {list(others.fields)} with "
            f"{len(others.columns)} numbers, {data.path} has {list(data.fields)} with {len(data.columns)}; episodes of "
            f"another task must have the same, so choose others or set data.observation_keys"
        )
