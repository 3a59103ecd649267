"""One loop for all trainers: declared levels, exact averages at every level, hooks at level ends, resume at any step.

Imports nothing of Millpond but its errors. `record` may import this package, and `store` both.
"""

from millpond.loop.address import Address
from millpond.loop.errors import LoopError, NonFiniteError
from millpond.loop.hooks import Ended
from millpond.loop.levels import Until
from millpond.loop.loop import Loop, Redraw
from millpond.loop.moments import Moments
from millpond.loop.signals import stop_on_signals

__all__ = ["Address", "Ended", "Loop", "LoopError", "Moments", "NonFiniteError", "Redraw", "Until", "stop_on_signals"]
