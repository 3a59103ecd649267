"""One loop for all trainers: declared levels, exact averages at every level, hooks at level ends, resume at any step.

Imports only the errors of Millpond. `record` may import this package, and `store` may import both.
"""

from millpond.loop.levels import Address, LoopError, NonFiniteError, Until
from millpond.loop.loop import LevelEnd, Loop, Redraw
from millpond.loop.statistics import Moments
from millpond.loop.stopping import stop_on_signals, stop_signals

__all__ = [
    "Address",
    "LevelEnd",
    "Loop",
    "LoopError",
    "Moments",
    "NonFiniteError",
    "Redraw",
    "Until",
    "stop_on_signals",
    "stop_signals",
]
