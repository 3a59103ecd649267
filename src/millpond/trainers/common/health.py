"""Warnings about runs that diverge: pure functions of a record and of the records before it.

A warning is logged once when its cause appears, and again only after a record without it. To add one, write a function
`(record, before) -> str | None`, and name it in the checks of a kind, below. Records hold means of what is measured anyway,
so that nothing is computed for warnings while training.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from millpond.config.mixture import DQNConfig, PQNConfig
from millpond.config.ppo import PPOConfig
from millpond.durable import replace_file
from millpond.envs.spec import ActionSpec
from millpond.record import Record
from millpond.trainers.common.failures import largest_factor

HISTORY = 20  # records before the current one that checks see
ENTROPY_SHARE = 0.01  # of the largest possible entropy: below it a policy of choices is nearly deterministic
LOG_DEVIATION = -5.0  # below it, relative to half the range of a continuous action, it is nearly deterministic
APPROX_KL = 0.5  # mean of an iteration; healthy runs are below 0.05
GRADIENT_FACTOR = 100.0  # times the median of the records before
MIN_GRADIENT = 10.0  # and times the norm that it is clipped to
HUGE_GRADIENT = 1e6  # also without records before

Check = Callable[[Mapping[str, float], Sequence[Mapping[str, float]]], str | None]


def entropy_floor(action: ActionSpec) -> float:
    """Return the entropy below which a policy has collapsed.

    Choices: a share of the sum of log(size). Continuous: that of normal distributions with tiny deviations.
    """
    if action.kind != "continuous":
        return ENTROPY_SHARE * sum(math.log(size) for size in action.sizes)
    half = [(high - low) / 2 for low, high in zip(action.low, action.high, strict=True)]
    log_half = [math.log(reach) if 0 < reach < math.inf else 0.0 for reach in half]
    return sum(0.5 * math.log(2 * math.pi * math.e) + LOG_DEVIATION + reach for reach in log_half)


def entropy_collapsed(
    record: Mapping[str, float], before: Sequence[Mapping[str, float]], *, floor: float, ent_coef: float
) -> str | None:
    """Warn if the policy always chooses the same actions: it no longer explores, and hardly recovers."""
    entropy = record.get("entropy")
    if entropy is None or entropy >= floor:
        return None
    more = f"{max(0.01, 10 * ent_coef):.3g}"
    return (
        f"entropy collapsed to {entropy:.3g} (below {floor:.3g}): the policy no longer explores. Try ppo.ent_coef={more}, or "
        f"a smaller ppo.learning_rate"
    )


def ratios_exploded(
    record: Mapping[str, float], before: Sequence[Mapping[str, float]], *, learning_rate: float
) -> str | None:
    """Warn if the policy changes so much within an iteration that its samples say nothing about the new policy."""
    approx_kl = record.get("approx_kl", 0.0)
    if approx_kl <= APPROX_KL:
        return None
    return (
        f"approx_kl is {approx_kl:.3g} (healthy: below 0.05): within one iteration probabilities of actions change by a factor "
        f"of at least {largest_factor(approx_kl):.3g}. Try ppo.target_kl=0.03, or ppo.learning_rate={learning_rate / 3:.3g}"
    )


def gradient_exploded(
    record: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    *,
    name: str,
    section: str,
    max_grad_norm: float,
    learning_rate: float,
) -> str | None:
    """Warn if the gradient before clipping is far larger than in the records before, or huge."""
    norm = record.get(name)
    if norm is None:
        return None
    usual = [other[name] for other in before if name in other]
    exploded = len(usual) >= 3 and norm > GRADIENT_FACTOR * median(usual) and norm > MIN_GRADIENT * max_grad_norm
    if not exploded and norm <= HUGE_GRADIENT:
        return None
    compared = f", {norm / max(median(usual), 1e-30):,.3g} times its median before" if usual else ""
    return (
        f"{name} is {norm:.3g} before clipping to {section}.max_grad_norm={max_grad_norm:g}{compared}. Try "
        f"{section}.learning_rate={learning_rate / 3:.3g}, or smaller rewards: env.reward_scale"
    )


def ppo_checks(ppo: PPOConfig, action: ActionSpec) -> dict[str, Check]:
    """Return the checks of PPO by cause."""
    return {
        "entropy": partial(entropy_collapsed, floor=entropy_floor(action), ent_coef=ppo.ent_coef),
        "ratios": partial(ratios_exploded, learning_rate=ppo.learning_rate),
        "gradient": _gradient_check("grad_norm", "ppo", ppo),
    }


def mixture_checks(agents: int, pqn: PQNConfig, dqn: DQNConfig) -> dict[str, Check]:
    """Return the checks of a mixture by cause."""
    names = [f"agent{number}" for number in range(agents)]
    checks = {f"gradient of {name}": _gradient_check(f"{name}/grad_norm", "pqn", pqn) for name in names}
    return checks | {"gradient of the BigAgent": _gradient_check("big/grad_norm", "dqn", dqn)}


def _gradient_check(name: str, section: str, settings: Any) -> Check:
    norm, rate = settings.max_grad_norm, settings.learning_rate
    return partial(gradient_exploded, name=name, section=section, max_grad_norm=norm, learning_rate=rate)


@dataclass(frozen=True)
class HealthWarning:
    """A warning, and the counters of the record that gave it."""

    cause: str
    text: str
    updates: int
    agent_steps: int


class HealthMonitor:
    """Finds warnings in a sequence of records."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._before: deque[Mapping[str, float]] = deque(maxlen=HISTORY)
        self._present: set[str] = set()

    def add(self, record: Mapping[str, float]) -> list[HealthWarning]:
        """Return the warnings whose causes appear with this record."""
        found = {cause: text for cause, check in self._checks.items() if (text := check(record, self._before))}
        new = [
            HealthWarning(cause, text, int(record.get("updates", 0)), int(record.get("agent_steps", 0)))
            for cause, text in found.items()
            if cause not in self._present
        ]
        self._present = set(found)
        self._before.append(record)
        return new


class HealthSink:
    """A sink that logs warnings and keeps them in `warnings.jsonl`, which a resumed run writes again from its records."""

    remote = False

    def __init__(self, path: Path, checks: Mapping[str, Check], say: Callable[[str], None]) -> None:
        self._path, self._say, self._monitor = path, say, HealthMonitor(checks)
        self._warnings: list[HealthWarning] = []

    def open(self, previous: Iterable[Record]) -> None:
        for record in previous:
            self._warnings += self._monitor.add(record)
        if self._warnings or self._path.exists():
            self._write()

    def write(self, record: Record, number: int) -> None:
        new = self._monitor.add(record)
        if new:
            self._warnings += new
            self._write()
            for warning in new:
                self._say(f"warning: after {warning.updates:,} updates: {warning.text}")

    def close(self) -> None: ...

    def _write(self) -> None:
        lines = [json.dumps(vars(warning)) for warning in self._warnings]
        replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())
