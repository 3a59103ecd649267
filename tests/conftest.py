"""Fixtures and rules for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("millpond", deadline=None, print_blob=True)
settings.load_profile("millpond")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `slow` run only when they are asked for: `make test-slow`, or `pytest -m slow`."""
    if config.getoption("-m"):
        return
    kept = [item for item in items if "slow" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "slow" in item.keywords])
    items[:] = kept
