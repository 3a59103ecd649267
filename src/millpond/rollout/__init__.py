"""Experience on policy: rows, how they are filled, and how they are drawn."""

from millpond.rollout.collect import Collector
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import Draw, draw_minibatches

__all__ = ["Collector", "Draw", "Rows", "draw_minibatches"]
