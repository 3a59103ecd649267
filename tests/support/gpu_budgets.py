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
        "group step": Budget(71, 0.01, 1.1, 0, 1),
        "update": Budget(3244, 0, 4, 4, 0),
    },
    "metta": {
        "group step": Budget(56, 0.01, 1.1, 0, 1),
        "update": Budget(3239, 0, 4, 4, 0),
    },
    "mettagrid": {
        "group step": Budget(63, 1.1, 1.1, 0, 1),
        "update": Budget(3459, 12, 4, 4, 0),
    },
    "mixture": {
        "group step": Budget(23, 0.1, 6.4, 6.4, 1.4),
        "update": Budget(204, 0, 0, 0, 0),
        "BigAgent step": Budget(104, 1, 11, 11, 1),
    },
    "reward-online": {
        "group step": Budget(6.1, 0, 2.7, 2.7, 0.2),
        "update": Budget(343, 0, 13, 13, 0),
    },
}
