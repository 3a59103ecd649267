"""What one unit of work of a recipe's preset `debug` may ask of a GPU. These numbers only ever go down.

Each is the figure of today, rounded up. After a change that lowers one, lower it here.
"""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """Counts per unit: see `millpond.devices.counts`. `uploads` are of both kinds, `blocking` those that the host waits for."""

    launches: float
    syncs: float
    uploads: float
    blocking: float
    downloads: float


BUDGETS: dict[str, dict[str, Budget]] = {
    # recipe: unit: launches, syncs, uploads, of them blocking, downloads
    "grid": {
        "group step": Budget(24, 0.01, 1.1, 0, 1),
        "update": Budget(381, 0, 1, 0, 0),
    },
    "metta": {
        "group step": Budget(24, 0.01, 1.1, 0, 1),
        "update": Budget(365, 0, 1, 0, 0),
    },
    "mettagrid": {
        "group step": Budget(18, 0.01, 1.1, 0, 1),
        "update": Budget(369, 0, 1, 0, 0),
    },
    "mixture": {
        "group step": Budget(19, 0, 1.3, 0.1, 1),
        "update": Budget(163, 0, 0, 0, 0),
        "BigAgent step": Budget(96, 0, 1, 0, 0),
    },
    "reward-online": {
        "group step": Budget(6.1, 0, 0.4, 0, 0.2),
        "update": Budget(274, 0, 2, 0, 0),
    },
}
