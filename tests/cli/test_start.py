"""Garbage is not collected while a command is imported and a run is built, and is afterwards."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from millpond.cli import main, without_collections
from millpond.trainers.ppo.trainer import PPOTrainer


def test_collections_are_as_before_after_the_context() -> None:
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="a failure"), without_collections():
        raise ValueError("a failure")
    assert gc.isenabled()


def test_garbage_is_collected_in_training_but_not_while_a_run_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: dict[str, bool] = {}
    build, train = PPOTrainer.__init__, PPOTrainer.train

    def watch_build(self: PPOTrainer, *arguments: Any, **options: Any) -> None:
        enabled["build"] = gc.isenabled()
        build(self, *arguments, **options)

    def watch_train(self: PPOTrainer) -> None:
        enabled["train"] = gc.isenabled()
        train(self)

    monkeypatch.setattr(PPOTrainer, "__init__", watch_build)
    monkeypatch.setattr(PPOTrainer, "train", watch_train)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["millpond", "train", "grid", "--debug", "log.tensorboard=false"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert enabled == {"build": False, "train": True}
    assert gc.isenabled()
