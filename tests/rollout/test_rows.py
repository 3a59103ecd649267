"""Rows: writing at a time step, by name or through views."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.rollout.rows import Rows
from millpond.rollout.schema import RowField

AGENTS, HORIZON, ENVS = 3, 4, 5
FIELDS = [
    RowField("observation", (2,), "float32", 4, per_step=True, trained=True),
    RowField("alive", (), "bool", 1, per_step=True, trained=True),
    RowField("next_value", (), "float32", 4, per_step=False, trained=False),
]


@pytest.mark.parametrize("agents_per_row", [1, AGENTS])
def test_writing_through_places_is_writing_by_name(agents_per_row: int) -> None:
    """Rows that are agents, or envs with all their agents; of two envs in the middle of the buffer."""
    rng = np.random.default_rng(0)
    by_name, by_place = (
        Rows(FIELDS, ENVS * AGENTS // agents_per_row, HORIZON, AGENTS, agents_per_row, "cpu") for _ in range(2)
    )
    first, envs = 2 * by_name.rows_per_env, 2
    places = by_place.places(first, envs)
    assert places is not None
    assert places.keys() == {"observation", "alive"}
    for t in range(HORIZON):
        observation = rng.random((envs, AGENTS, 2), np.float32)
        alive = rng.random((envs, AGENTS)) < 0.5
        for name, values in (("observation", observation), ("alive", alive)):
            by_name.write(name, first, t, values)
            places[name][t] = values
    for name in places:
        assert by_name[name].any()
        np.testing.assert_array_equal(by_name[name].numpy(), by_place[name].numpy())
