"""A mistyped key, and a key of another library, get a suggestion."""

from __future__ import annotations

import pytest

from millpond.config import ConfigError, load
from millpond.config.keys import ALIASES, kinds_of


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    [
        *(("grid", name, "ppo.learning_rate") for name in ("lr", "trainer.lr", "ppo.lr", "trainer.learning_rate")),
        *(("grid", name, "trainer.bptt_horizon") for name in ("n_steps", "trainer.num_steps")),
        *(("grid", name, "trainer.update_epochs") for name in ("n_epochs", "update_epochs", "ppo.update_epochs")),
        *(("grid", name, "ppo.clip_coef") for name in ("clip_range", "clip_coef", "trainer.clip_coef")),
        ("grid", "gae_lambda", "ppo.gae_lambda"),
        ("grid", "ent_coef", "ppo.ent_coef"),
        ("grid", "trainer.vf_coef", "ppo.vf_coef"),
        ("grid", "total_timesteps", "trainer.total_timesteps"),
        ("grid", "n_envs", "trainer.num_envs"),
        ("grid", "minibatch", "trainer.minibatch_size"),
        ("grid", "num_minibatches", "trainer.minibatch_size"),
        ("grid", "ppo.learnign_rate", "ppo.learning_rate"),
        ("mixture", "lr", "pqn.learning_rate"),
        ("mixture", "dqn.lr", "dqn.learning_rate"),
        ("reward", "lr", "reward.learning_rate"),
    ],
)
def test_names_of_other_libraries_suggest_the_key(kind: str, typed: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{typed} is not a known key; did you mean {meant}\?$"):
        load(kind, [f"{typed}=3"])


def test_a_name_unlike_any_key_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"trainer.zebra is not a known key; `millpond plan --explain trainer` lists"):
        load("grid", ["trainer.zebra=3"])
    with pytest.raises(ConfigError, match=r"zebra is not a known key; sections are env, vector, "):
        load("grid", ["zebra=3"])


def test_every_alias_is_a_key_of_some_kind() -> None:
    assert all(kinds_of(key) for known in ALIASES.values() for key in known)
