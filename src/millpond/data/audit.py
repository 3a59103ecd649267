"""An audit: what is wrong with recorded episodes, or will mislead, what it means and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from millpond.data.episodes import Episodes
from millpond.data.fitting import are_constant, unfit
from millpond.data.survey import Survey, survey
from millpond.plurals import plural, verb

Severity = Literal["error", "warning", "note"]
SHOWN = 5  # names in a finding; `where` has them all
MOSTLY_ONE = 0.99  # share of actions in [-1, 1] from which that is taken to be their range
NEARLY = 0.01  # spread of the returns, relative to their size, that is hardly any
SHARE = 0.95  # of episodes with one and the same return
FEW = 5


@dataclass(frozen=True)
class AuditFinding:
    """`error`: the data is broken. `warning`: it will mislead unless something is done. `note`: good to know."""

    code: str
    severity: Severity
    what: str
    meaning: str
    fix: str
    where: tuple[str, ...] = ()  # columns as FIELD:COLUMN, or names of episodes


def audit(data: Episodes, progress: Callable[[int], None] | None = None) -> list[AuditFinding]:
    """All findings, the gravest first. Reads every vector once, and no images."""
    found = survey(data, progress)
    checks = (_finite, _flags, _actions, _clocks, _returns, _success, _duplicates, _columns, _frames)
    findings = [finding for check in checks for finding in check(found)]
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity))


def _finite(found: Survey) -> Iterator[AuditFinding]:
    if found.not_finite:
        kinds = sorted({what for _, what in found.not_finite})
        names = _unique(name for name, _ in found.not_finite)
        yield AuditFinding(
            "not-finite",
            "error",
            f"NaN or infinity in {' and '.join(kinds)} of {_episodes(names)}",
            "one such number makes every weight of a network NaN",
            "leave these episodes out, or fix the file",
            names,
        )


def _flags(found: Survey) -> Iterator[AuditFinding]:
    data = found.data
    if found.flags_inside:
        yield AuditFinding(
            "terminal-flags",
            "error",
            f"{_episodes(found.flags_inside)} go on after a step that is flagged as their end",
            "either the flags are wrong, or several episodes were joined into one",
            "cut the episodes at the flags, or fix the flags",
            tuple(found.flags_inside),
        )
    if found.flags_both:
        yield AuditFinding(
            "terminal-flags",
            "warning",
            f"{_episodes(found.flags_both)} have a step that is terminated and truncated at once",
            "a terminated step has no future; a truncated one has, but it was not seen. Terminated counts here",
            "find out which it was, and clear the other flag",
            tuple(found.flags_both),
        )
    if found.flags_missing:
        yield AuditFinding(
            "terminal-flags",
            "warning",
            f"{_episodes(found.flags_missing)} have no flag at their last step",
            "the recording broke off, or the time limit was not recorded; such episodes count as truncated",
            "flag their last steps as truncated where you write the file",
            tuple(found.flags_missing),
        )
    same_length = len(np.unique(data.lengths)) == 1 and data.lengths[0] > 1
    if found.terminated == len(data) >= FEW and same_length:
        yield AuditFinding(
            "terminal-flags",
            "warning",
            f"all {len(data):,} episodes are flagged as terminated, after {plural(int(data.lengths[0]), 'step')} each",
            "that is a time limit, not an end of their own: they were truncated, and have a future",
            "record them as truncated; return decomposition and progress do not look at the flag",
        )


def _actions(found: Survey) -> Iterator[AuditFinding]:
    data = found.data
    if data.action is None:
        yield AuditFinding(
            "no-actions",
            "note",
            f"{data.without_actions} is missing, so no actions are read",
            "a reward of transitions r(s, a, s') cannot be learned; progress and success look at observations alone",
            "reward.objective=progress",
        )
        return
    low, high = float(found.action_lowest.min()), float(found.action_highest.max())
    if data.discrete:
        if low < 0:
            yield AuditFinding(
                "action-range",
                "error",
                f"discrete actions go down to {low:g}",
                "an action is a number from 0 on",
                "number the actions from 0 where you write the file",
            )
        return
    inside = 1 - found.outside / max(found.action_values, 1)
    if found.outside and (found.action_bounds or inside >= MOSTLY_ONE):
        bottom, top = found.action_bounds or (-1.0, 1.0)
        columns = np.flatnonzero((found.action_lowest < bottom) | (found.action_highest > top))
        reason = "the file itself says" if found.action_bounds else "nearly all others lie inside"
        yield AuditFinding(
            "action-range",
            "warning",
            f"{found.outside:,} of {found.action_values:,} values of actions lie outside {bottom:g} to {top:g}, as far as "
            f"{low:g} and {high:g}",
            f"that is their range, as {reason}: the environment clipped these, and the record is not what was done",
            f"clip the actions to {bottom:g} and {top:g} where you write the file",
            tuple(f"action:{column}" for column in columns.tolist()),
        )


def _clocks(found: Survey) -> Iterator[AuditFinding]:
    if not found.timed_episodes:
        return
    moves = found.highest > found.lowest
    clocks = moves & (found.linear | (found.by_step & found.moved))
    names = tuple(column for column, is_clock in zip(found.data.columns, clocks, strict=True) if is_clock)
    if names:
        yield AuditFinding(
            "clock-column",
            "warning",
            f"{_listed(names)} {'is a clock' if len(names) == 1 else 'are clocks'}: known from the number of the step "
            f"alone, in every episode",
            "progress is read off the clock, without looking at the task; every score of order in time is then perfect "
            "and means nothing",
            f"data.drop_columns=[{','.join(names)}]",
            names,
        )


def _returns(found: Survey) -> Iterator[AuditFinding]:
    data = found.data
    returns = data.returns
    if returns is None:
        yield AuditFinding(
            "no-rewards",
            "note",
            "there are no rewards",
            "there are no returns to take apart",
            "reward.objective=progress",
        )
        return
    if not np.isfinite(returns).all():
        return
    values, counts = np.unique(returns, return_counts=True)
    commonest = float(values[counts.argmax()])
    size = float(np.abs(returns).mean())
    if len(data) > 1 and are_constant(returns):
        yield AuditFinding(
            "constant-returns",
            "warning",
            f"all {len(data):,} episodes have the return {returns[0]:g}",
            "any way of spreading it explains it, also one that gives every step the same: return decomposition learns "
            "nothing, and training refuses it",
            "reward.objective=progress",
        )
    elif len(data) >= FEW and (returns.std() < NEARLY * size or counts.max() >= SHARE * len(data)):
        told = (
            f"{counts.max():,} of {len(data):,} episodes have the return {commonest:g}"
            if counts.max() >= SHARE * len(data)
            else f"returns vary by {returns.std():.3g} around {returns.mean():.5g}"
        )
        yield AuditFinding(
            "near-constant-returns",
            "warning",
            told,
            "hardly anything tells good steps from bad ones; return decomposition will mostly fit noise",
            "reward.objective=progress, or record episodes of players of different strength",
        )
    elif len(np.unique(data.lengths)) > 2 and abs(np.corrcoef(returns, data.lengths)[0, 1]) > 0.999:
        yield AuditFinding(
            "returns-are-lengths",
            "warning",
            "the return is the number of steps, times a constant",
            "a reward that is the same for every step explains it perfectly",
            "compare with the constant baseline before you believe a learned reward",
        )
    if not found.rewards_before_the_end:
        yield AuditFinding(
            "rewards-at-the-end",
            "note",
            "rewards come with the last step only",
            "the true reward of single steps is not known, so learned ones cannot be compared with it",
            "judge by the return correlation on held-out episodes",
        )


def _success(found: Survey) -> Iterator[AuditFinding]:
    success = found.data.success
    if success is None or not (success.all() or not success.any()):
        return
    yield AuditFinding(
        "success-only" if success.all() else "failure-only",
        "warning",
        f"{'every' if success.all() else 'no'} episode succeeded",
        "a classifier of success sees one class; a learned reward never sees the other side",
        "reward.objective=progress, which makes failures of its own by cutting and reversing"
        if "progress" not in unfit(found.data)
        else "record episodes of the other kind too",
    )


def _duplicates(found: Survey) -> Iterator[AuditFinding]:
    groups = [episodes for episodes in found.same.values() if len(episodes) > 1]
    if groups:
        extra = sum(len(group) - 1 for group in groups)
        first = " = ".join(found.data.names[episode] for episode in groups[0][:3])
        yield AuditFinding(
            "duplicate-episodes",
            "warning",
            f"1 episode is a copy of another, such as {first}"
            if extra == 1
            else f"{extra:,} episodes are copies of others, such as {first}",
            "a copy can fall among the held-out episodes, which are then not held out",
            "leave the copies out",
            tuple(found.data.names[episode] for group in groups for episode in group[1:]),
        )


def _columns(found: Survey) -> Iterator[AuditFinding]:
    still = found.highest <= found.lowest
    names = tuple(column for column, is_still in zip(found.data.columns, still, strict=True) if is_still)
    if names:
        yield AuditFinding(
            "constant-column",
            "note",
            f"{_listed(names)} never {'changes' if len(names) == 1 else 'change'}",
            "nothing can be learned from it; it does no harm",
            f"data.drop_columns=[{','.join(names)}]",
            names,
        )


def _frames(found: Survey) -> Iterator[AuditFinding]:
    data = found.data
    missing = int(np.count_nonzero(~data.final_known))
    if missing:
        yield AuditFinding(
            "final-missing",
            "note",
            f"the observation after the last step is not stored in {missing:,} of {len(data):,} episodes",
            "their last step has no difference to the next observation; the last observation stands in its place",
            "nothing needs to be done",
        )
    short = np.flatnonzero(data.lengths < 2)
    if len(short):
        yield AuditFinding(
            "short-episodes",
            "warning",
            f"{plural(len(short), 'episode')} {'has' if len(short) == 1 else 'have'} a single step",
            "they have no order in time",
            "leave them out",
            tuple(data.names[episode] for episode in short.tolist()),
        )
    if len(data) < FEW:
        yield AuditFinding(
            "few-episodes",
            "note",
            f"there {verb(len(data), 'are')} only {plural(len(data), 'episode')}",
            "a share of them held out is one or none, and its scores are chance",
            "judge by leaving out each in turn",
        )


def _unique(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _episodes(names: Sequence[str]) -> str:
    return f"{len(names):,} episodes ({_listed(names)})" if len(names) > 1 else f"episode {names[0]}"
