"""By default PPO and reward runs keep the newest five checkpoints and the best; mixtures keep all."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.config import load
from millpond.store import Checkpoints
from tests.support.mixture_runs import finish, start
from tests.support.reward_runs import train_tiny_reward


@pytest.mark.parametrize(
    ("recipe", "kept"),
    [("metta", 5), ("puffer-metta", 5), ("grid", 5), ("reward", 5), ("mixture", None)],
)
def test_default_by_kind_and_null_keeps_all(recipe: str, kept: int | None) -> None:
    assert load(recipe).recipe.checkpoint.keep_last == kept
    assert load(recipe, ["checkpoint.keep_last=null"]).recipe.checkpoint.keep_last is None
    assert load(recipe, ["checkpoint.keep_last=2"]).recipe.checkpoint.keep_last == 2


def test_reward_run_keeps_five_checkpoints_and_the_best(tmp_path: Path) -> None:
    changes = {"reward.epochs": 9, "reward.iterations": 1, "reward.train_batches": 1}
    every = train_tiny_reward(tmp_path, "all", **changes, **{"checkpoint.keep_last": None})
    some = train_tiny_reward(tmp_path, "some", **changes)
    everything = Checkpoints(every.run.checkpoints_path)
    best = everything.best_score()
    expected = {*everything.updates()[-5:], *([best[0]] if best else [])}
    assert len(everything.updates()) == 9
    assert set(Checkpoints(some.run.checkpoints_path).updates()) == expected


def test_mixture_keeps_all_checkpoints(tmp_path: Path) -> None:
    trainer = finish(start(tmp_path, "plenty", {"mixture.collections_per_round": 1}))
    assert trainer.plan.rounds == 8
    assert len(Checkpoints(trainer.run.checkpoints_path).updates()) == 16  # after both phases of every round
