"""Statistics of draws."""

from __future__ import annotations

import numpy as np


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations the chi-square statistic of equal chances lies from its mean."""
    expected = counts.sum() / len(counts)
    degrees = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))
