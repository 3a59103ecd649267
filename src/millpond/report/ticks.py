"""Axes that can be read: round tick values and short labels."""

from __future__ import annotations

import math

SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ticks(low: float, high: float, at_most: int = 5) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) that lie between low and high."""
    if not high > low:
        return [low]
    rough = (high - low) / at_most
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    return [k * apart for k in range(first, last + 1)]


def widened(low: float, high: float) -> tuple[float, float]:
    """Limits a little beyond the values, and apart from each other where all values are the same."""
    if high > low:
        margin = (high - low) * 0.05
        return low - margin, high + margin
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def label(value: float, apart: float) -> str:
    """A tick's label, with the digits that tell it from its neighbours: 1.5M, 20k, 0.05, 3e-07."""
    if value == 0 or abs(value) < apart * 1e-9:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.2g}"
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return _plain(value / size, apart / size) + suffix
    return _plain(value, apart)


def _plain(value: float, apart: float) -> str:
    digits = max(0, -math.floor(math.log10(apart) + 1e-9)) if apart > 0 else 3
    return f"{value:.{min(digits, 6)}f}"


def figure(value: float) -> str:
    """A value as it is told in words: whole numbers with separators, others with four significant digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
