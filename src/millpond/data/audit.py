"""Audit of recorded episodes: problems and pitfalls, what they mean and how to fix them, and the objectives they can serve.

`audit` reads every vector once. `unfit`, `refuse_unfit` and `split_episodes` read only rewards and success flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from millpond.data.episodes import Episodes
from millpond.data.source import Array, DataError
from millpond.data.survey import Survey, survey_episodes
from millpond.formatting import plural, verb

Severity = Literal["error", "warning", "note"]
MAX_NAMES = 5  # names listed in a finding; `where` has them all
UNIT_RANGE_FRACTION = 0.99  # fraction of actions in [-1, 1] from which that is taken to be their range
SMALL_SPREAD = 0.01  # of the returns, relative to their size
SAME_RETURN_FRACTION = 0.95  # of the episodes
FEW_EPISODES = 5
Integers = np.ndarray[Any, np.dtype[np.int64]]
OBJECTIVES = ("lrd", "rrd", "progress", "success")
CONSTANT_SPREAD = 1e-6  # spread of the returns, relative to the largest, below which they count as equal


@dataclass(frozen=True)
class AuditFinding:
    """`error`: the data is broken. `warning`: it misleads unless it is fixed. `note`: good to know."""

    code: str
    severity: Severity
    what: str
    meaning: str
    fix: str
    where: tuple[str, ...] = ()  # columns as FIELD:COLUMN, or names of episodes


def audit(data: Episodes, progress: Callable[[int], None] | None = None) -> list[AuditFinding]:
    """All findings, most severe first. Reads every vector once, and no images."""
    survey = survey_episodes(data, progress)
    checks = (
        _check_finite,
        _check_flags,
        _check_actions,
        _check_clocks,
        _check_returns,
        _check_success,
        _check_duplicates,
        _check_columns,
        _check_frames,
    )
    findings = [finding for check in checks for finding in check(survey)]
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity))


def _check_finite(survey: Survey) -> Iterator[AuditFinding]:
    if survey.not_finite:
        kinds = sorted({kind for _, kind in survey.not_finite})
        names = _unique(name for name, _ in survey.not_finite)
        yield AuditFinding(
            "not-finite",
            "error",
            f"NaN or infinity in {' and '.join(kinds)} of {_episodes(names)}",
            "one such number makes every weight of a network NaN",
            "remove these episodes, or fix the file",
            names,
        )


def _check_flags(survey: Survey) -> Iterator[AuditFinding]:
    data = survey.data
    if survey.flags_inside:
        yield AuditFinding(
            "terminal-flags",
            "error",
            f"{_episodes(survey.flags_inside)} continue after a step that is flagged as their end",
            "either the flags are wrong, or several episodes were joined into one",
            "split the episodes at the flags, or fix the flags",
            tuple(survey.flags_inside),
        )
    if survey.flags_both:
        yield AuditFinding(
            "terminal-flags",
            "warning",
            f"{_episodes(survey.flags_both)} have a step that is terminated and truncated at once",
            "a terminated step has no future; a truncated one has, but it was not recorded. Terminated takes precedence",
            "find out which is right, and clear the other flag",
            tuple(survey.flags_both),
        )
    if survey.flags_missing:
        yield AuditFinding(
            "terminal-flags",
            "warning",
            f"{_episodes(survey.flags_missing)} have no flag at their last step",
            "the recording was interrupted, or the time limit was not recorded; such episodes count as truncated",
            "flag their last steps as truncated where you write the file",
            tuple(survey.flags_missing),
        )
    same_length = len(np.unique(data.lengths)) == 1 and data.lengths[0] > 1
    if survey.terminated == len(data) >= FEW_EPISODES and same_length:
        yield AuditFinding(
            "terminal-flags",
            "warning",
            f"all {len(data):,} episodes are flagged as terminated, after {plural(int(data.lengths[0]), 'step')} each",
            "that is a time limit, not a terminal state: they were truncated, and have a future",
            "record them as truncated; return decomposition and progress ignore the flag",
        )


def _check_actions(survey: Survey) -> Iterator[AuditFinding]:
    data = survey.data
    if data.action is None:
        yield AuditFinding(
            "no-actions",
            "note",
            f"{data.missing_actions} is missing, so no actions are read",
            "a reward of transitions r(s, a, s') cannot be learned; progress and success need only observations",
            "reward.objective=progress",
        )
        return
    low, high = float(survey.action_lowest.min()), float(survey.action_highest.max())
    if data.discrete:
        if low < 0:
            yield AuditFinding(
                "action-range",
                "error",
                f"the lowest discrete action is {low:g}",
                "actions are numbered from 0",
                "number the actions from 0 where you write the file",
            )
        return
    inside = 1 - survey.outside / max(survey.action_values, 1)
    if survey.outside and (survey.action_bounds or inside >= UNIT_RANGE_FRACTION):
        bottom, top = survey.action_bounds or (-1.0, 1.0)
        columns = np.flatnonzero((survey.action_lowest < bottom) | (survey.action_highest > top))
        reason = "stated in the file" if survey.action_bounds else "nearly all others are inside it"
        yield AuditFinding(
            "action-range",
            "warning",
            f"{survey.outside:,} of {survey.action_values:,} values of actions are outside {bottom:g} to {top:g}, as far as "
            f"{low:g} and {high:g}",
            f"that is their range ({reason}): the environment clipped these, so the recorded actions are not those executed",
            f"clip the actions to {bottom:g} and {top:g} where you write the file",
            tuple(f"action:{column}" for column in columns.tolist()),
        )


def _check_clocks(survey: Survey) -> Iterator[AuditFinding]:
    if not survey.timed_episodes:
        return
    moves = survey.highest > survey.lowest
    clocks = moves & (survey.linear | (survey.by_step & survey.moved))
    names = tuple(column for column, is_clock in zip(survey.data.columns, clocks, strict=True) if is_clock)
    if names:
        yield AuditFinding(
            "clock-column",
            "warning",
            f"{_listed(names)} {'is a clock' if len(names) == 1 else 'are clocks'}: determined by the step index "
            f"alone, in every episode",
            "progress is predicted from the clock, without looking at the task; every score of order in time is then "
            "perfect and means nothing",
            f"data.drop_columns=[{','.join(names)}]",
            names,
        )


def _check_returns(survey: Survey) -> Iterator[AuditFinding]:
    data = survey.data
    returns = data.returns
    if returns is None:
        yield AuditFinding(
            "no-rewards",
            "note",
            "there are no rewards",
            "there are no returns to decompose",
            "reward.objective=progress",
        )
        return
    if not np.isfinite(returns).all():
        return
    values, counts = np.unique(returns, return_counts=True)
    most_common = float(values[counts.argmax()])
    size = float(np.abs(returns).mean())
    if len(data) > 1 and are_constant(returns):
        yield AuditFinding(
            "constant-returns",
            "warning",
            f"all {len(data):,} episodes have the return {returns[0]:g}",
            "any distribution of it over the steps fits, even a uniform one: return decomposition learns nothing, and "
            "training refuses it",
            "reward.objective=progress",
        )
    elif len(data) >= FEW_EPISODES and (
        returns.std() < SMALL_SPREAD * size or counts.max() >= SAME_RETURN_FRACTION * len(data)
    ):
        summary = (
            f"{counts.max():,} of {len(data):,} episodes have the return {most_common:g}"
            if counts.max() >= SAME_RETURN_FRACTION * len(data)
            else f"returns vary by {returns.std():.3g} around {returns.mean():.5g}"
        )
        yield AuditFinding(
            "near-constant-returns",
            "warning",
            summary,
            "almost nothing distinguishes good steps from bad ones; return decomposition will mostly fit noise",
            "reward.objective=progress, or record episodes of policies of different skill",
        )
    elif len(np.unique(data.lengths)) > 2 and abs(np.corrcoef(returns, data.lengths)[0, 1]) > 0.999:
        yield AuditFinding(
            "returns-are-lengths",
            "warning",
            "the return is proportional to the number of steps",
            "a constant reward per step explains it perfectly",
            "compare with the constant baseline before you trust a learned reward",
        )
    if not survey.rewards_before_the_end:
        yield AuditFinding(
            "rewards-at-the-end",
            "note",
            "only the last step has a reward",
            "the true reward of other steps is unknown, so learned rewards cannot be compared with it",
            "judge by the return correlation on held-out episodes",
        )


def _check_success(survey: Survey) -> Iterator[AuditFinding]:
    success = survey.data.success
    if success is None or not (success.all() or not success.any()):
        return
    yield AuditFinding(
        "success-only" if success.all() else "failure-only",
        "warning",
        f"{'every' if success.all() else 'no'} episode succeeded",
        "a success classifier sees only one class, and a learned reward never sees the other",
        "reward.objective=progress, which creates failures by truncating and reversing episodes"
        if "progress" not in unfit(survey.data)
        else "record episodes of both outcomes",
    )


def _check_duplicates(survey: Survey) -> Iterator[AuditFinding]:
    groups = [episodes for episodes in survey.copies.values() if len(episodes) > 1]
    if groups:
        extra = sum(len(group) - 1 for group in groups)
        first = " = ".join(survey.data.names[episode] for episode in groups[0][:3])
        yield AuditFinding(
            "duplicate-episodes",
            "warning",
            f"1 episode is a copy of another, such as {first}"
            if extra == 1
            else f"{extra:,} episodes are copies of others, such as {first}",
            "a copy can end up among the held-out episodes, which are then not held out",
            "remove the copies",
            tuple(survey.data.names[episode] for group in groups for episode in group[1:]),
        )


def _check_columns(survey: Survey) -> Iterator[AuditFinding]:
    constant = survey.highest <= survey.lowest
    names = tuple(column for column, is_constant in zip(survey.data.columns, constant, strict=True) if is_constant)
    if names:
        yield AuditFinding(
            "constant-column",
            "note",
            f"{_listed(names)} never {'changes' if len(names) == 1 else 'change'}",
            "nothing can be learned from it, but it does no harm",
            f"data.drop_columns=[{','.join(names)}]",
            names,
        )


def _check_frames(survey: Survey) -> Iterator[AuditFinding]:
    data = survey.data
    missing = int(np.count_nonzero(~data.final_known))
    if missing:
        yield AuditFinding(
            "final-missing",
            "note",
            f"the observation after the last step is not stored in {missing:,} of {len(data):,} episodes",
            "their last step has no next observation; the last observation is used in its place",
            "nothing to do",
        )
    short = np.flatnonzero(data.lengths < 2)
    if len(short):
        yield AuditFinding(
            "short-episodes",
            "warning",
            f"{plural(len(short), 'episode')} {'has' if len(short) == 1 else 'have'} a single step",
            "their steps have no order",
            "remove them",
            tuple(data.names[episode] for episode in short.tolist()),
        )
    if len(data) < FEW_EPISODES:
        yield AuditFinding(
            "few-episodes",
            "note",
            f"there {verb(len(data), 'are')} only {plural(len(data), 'episode')}",
            "one or none of them is held out, and its scores are chance",
            "use leave-one-out evaluation",
        )


def _unique(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _episodes(names: Sequence[str]) -> str:
    return f"{len(names):,} episodes ({_listed(names)})" if len(names) > 1 else f"episode {names[0]}"


def are_constant(returns: Array) -> bool:
    """True if all returns are equal, up to rounding."""
    return bool(np.ptp(returns) <= CONSTANT_SPREAD * max(1.0, float(np.abs(returns).max())))


def unfit(data: Episodes) -> dict[str, str]:
    """Map each objective that these episodes cannot serve to the reason."""
    if data.returns is not None and not np.isfinite(data.returns).all():
        broken = data.names[int(np.argmin(np.isfinite(data.returns)))]
        reason = f"the rewards of {broken} have NaN or infinity; leave such episodes out, or fix the file"
        return dict.fromkeys(OBJECTIVES, reason)
    reasons: dict[str, str] = {}
    problem = _decomposition_problem(data)
    if problem:
        reasons |= {"lrd": problem, "rrd": problem}
    if int(data.lengths.max()) < 2:
        reasons["progress"] = "no episode is longer than one step, so steps have no order"
    if data.success is not None and not data.success.any():
        reasons["progress"] = "no episode succeeded, and progress is learned from successes"
    if data.success is None:
        reasons["success"] = "the data does not record which episodes succeeded"
    elif data.success.all() or not data.success.any():
        outcome = "every episode succeeded" if data.success.all() else "no episode succeeded"
        reasons["success"] = f"{outcome}, so a classifier sees only one class"
    return reasons


def refusal(data: Episodes, objective: str) -> str | None:
    """Reason why an objective can learn nothing from these episodes, with one that can; None if it can."""
    reasons = unfit(data)
    if objective not in reasons:
        return None
    others = [f"reward.objective={other}" for other in ("lrd", "progress", "success") if other not in reasons]
    advice = f"use {' or '.join(others)}" if others else "no objective fits these episodes"
    return f"{data.path} with reward.objective={objective}: {reasons[objective]}; {advice}"


def refuse_unfit(data: Episodes, objective: str) -> None:
    """Raise an error if an objective can learn nothing from these episodes."""
    reason = refusal(data, objective)
    if reason is not None:
        raise DataError(reason)


def split_episodes(
    data: Episodes, objective: str, holdout: float, held_out: tuple[int, ...], seed: int
) -> tuple[Integers, Integers]:
    """Indices of the training episodes and of the held-out ones.

    Held out are the episodes in `held_out`, or a random fraction drawn by a generator that serves only the split.
    Progress trains on successes alone: a failure makes no progress towards the end.
    """
    count = len(data)
    if held_out:
        out_of_range = [number for number in held_out if number >= count]
        if out_of_range:
            raise DataError(f"data.held_out names episode {out_of_range[0]}; there are {count:,}, counted from 0")
        held_out_episodes = np.unique(np.array(held_out, np.int64))
    else:
        held_out_episodes = np.sort(np.random.default_rng([seed, 0xE915]).permutation(count)[: round(count * holdout)])
    training = np.setdiff1d(np.arange(count), held_out_episodes)
    if objective == "progress" and data.success is not None:
        training = training[data.success[training]]
    if not len(training):
        raise DataError(
            f"{data.path}: no episode is left to train on ({count:,} in all, {len(held_out_episodes):,} held out); "
            + (f"name fewer in data.held_out={list(held_out)}" if held_out else f"lower data.holdout={holdout}")
            + ", or record more episodes"
        )
    return training, held_out_episodes


def _decomposition_problem(data: Episodes) -> str | None:
    if data.action is None:
        return f"{data.missing_actions} is missing, and a reward r(s, a, s') needs the actions"
    if data.returns is None:
        return "there are no rewards, so there are no returns to decompose"
    if len(data) == 1:
        return "there is only one episode, and a single return says nothing about its steps"
    if are_constant(data.returns):
        return (
            f"every one of the {len(data):,} episodes has the return {data.returns[0]:g}, so returns say nothing about "
            f"steps"
        )
    return None
