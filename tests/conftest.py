"""Fixtures and rules for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from millpond.processor import cache_folder, can_use_bfloat16

BFLOAT16 = pytest.StashKey[bool]()

settings.register_profile("millpond", deadline=None, print_blob=True)
settings.load_profile("millpond")


def pytest_configure(config: pytest.Config) -> None:
    """Make bfloat16 safe before any test uses torch: on some virtual machines its instructions kill the process.

    A shell starts background jobs with SIGINT ignored; tests send it to child processes, which would inherit that.
    """
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="millpond-state-")  # so that no test uses the user's own
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[BFLOAT16] = can_use_bfloat16()
    os.environ["XDG_CACHE_HOME"] = _copy_of_cache()


def pytest_unconfigure(config: pytest.Config) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        shutil.rmtree(os.environ[variable], ignore_errors=True)


def _copy_of_cache() -> str:
    """Return a cache folder like the user's, without what was measured about environments: tests must not depend on it."""
    users, copy = cache_folder(), Path(tempfile.mkdtemp(prefix="millpond-cache-"))
    for entry in users.parent.iterdir() if users.parent.is_dir() else ():
        if entry != users:
            (copy / entry.name).symlink_to(entry)
    (copy / users.name).mkdir()
    if (users / "processor.json").is_file():
        shutil.copy(users / "processor.json", copy / users.name)
    return str(copy)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "bfloat16" in item.keywords and not item.config.stash[BFLOAT16]:
        pytest.skip("bfloat16 does not work on this processor; `millpond doctor` says why")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """Stop the run as soon as a test kills its process: pytest-xdist would continue, or wait forever."""
    pytest.exit(f"{crashitem} ended its test process", returncode=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `slow` unless they are selected: `make test-slow`, or `pytest -m slow`."""
    if config.getoption("-m"):
        return
    kept = [item for item in items if "slow" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "slow" in item.keywords])
    items[:] = kept
