"""Statistics of samples."""

from __future__ import annotations

import numpy as np


def chi_square(counts: np.ndarray) -> float:
    """Return the z-score of the chi-square statistic for equal probabilities."""
    expected = counts.sum() / len(counts)
    degrees = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))
