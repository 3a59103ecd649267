"""Positions for compiled loops over bytes."""

from __future__ import annotations

import numpy as np

# Positions in buffers are unsigned: Numba then leaves out the code for negative indices.
Position = np.uintp
