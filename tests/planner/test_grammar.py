"""Counts agree with their nouns and verbs, also in plans with one of everything."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from millpond.config.check import merge
from millpond.formatting import many
from millpond.planner import Host, plan
from millpond.planner.compare import compare, scale, show_compare, show_scale
from millpond.planner.planned import show

NOUNS = (
    "agent", "batch", "byte", "clone", "collection", "cycle", "env", "episode", "epoch", "frame", "group",
    "iteration", "micro-batch",
    "minibatch", "number", "part", "pond", "round", "row", "sequence", "step", "time", "transition", "update",
    "worker", "world",
)  # fmt: skip
VERBS = "give|fill|take|hold|need|go|fit|replay|sample|avoid|are|have"
PPO: dict[str, Any] = {
    "kind": "ppo",
    "env": {"id": "grid", "num_agents": 1},
    "trainer": {
        "num_workers": 1,
        "num_envs": 1,
        "async_factor": 1,
        "bptt_horizon": 1,
        "batch_size": 1,
        "minibatch_size": 1,
        "total_timesteps": 1,
        "update_epochs": 1,
    },
}
MIXTURE: dict[str, Any] = {
    "extends": "mixture",
    "mixture": {
        "agents": 2,
        "total_frames": 2,
        "collections_per_round": 1,
        "big_updates": 1,
        "pond_transitions": 2,
        "big_pond_transitions": 2,
    },
    "pqn": {"num_envs": 1, "num_steps": 1, "num_minibatches": 1, "update_epochs": 1},
    "dqn": {"batch_size": 1, "n_step": 1},
}
REWARD: dict[str, Any] = {
    "extends": "reward-libero",
    "data": {"expected_episodes": 1, "expected_steps": 1},
    "reward": {
        "epochs": 1,
        "cycles": 1,
        "iterations": 1,
        "train_batches": 1,
        "episodes_per_batch": 1,
        "steps_per_episode": 2,
        "log_batches": 1,
    },
}
OF_ONE = [
    PPO,
    merge(PPO, {"policy": {"core": "none"}}),
    merge(PPO, {"trainer": {"num_envs": None, "forward_pass_minibatch_target_size": 1}}),
    merge(PPO, {"trainer": {"num_envs": 2, "async_factor": 2, "batch_size": 2, "total_timesteps": 2}}),
    merge(PPO, {"trainer": {"num_envs": 2, "batch_size": 2, "update_epochs": 2, "total_timesteps": 2}}),
    merge(PPO, {"trainer": {"num_envs": 2, "batch_size": 3, "total_timesteps": 3}}),  # one env tops up
    merge(PPO, {"trainer": {"num_envs": 2, "total_timesteps": 3}}),  # one env steps, one waits
    merge(PPO, {"env": {"num_agents": 2}, "trainer": {"num_envs": 2, "batch_size": 3, "total_timesteps": 3}}),
    MIXTURE,
    merge(MIXTURE, {"mixture": {"mode": "single", "agents": 1, "total_frames": 1}}),
    merge(MIXTURE, {"mixture": {"mode": "single-resets", "agents": 1, "total_frames": 1}}),
    merge(MIXTURE, {"mixture": {"mode": "live", "own_fraction": 1 / 3, "total_frames": 3, "big_pond_transitions": 99}}),
    REWARD,
    merge(REWARD, {"extends": "reward-online", "agent": {"warmup_steps": 1, "test_episodes": 1}}),
]


def disagreements(text: str) -> list[str]:
    """Return counts that do not agree with their noun or verb, cell by cell: columns are two spaces apart."""
    cells = [cell for line in text.splitlines() for cell in re.split(r" {2,}", line)]
    plurals, singulars = "|".join(map(many, NOUNS)), "|".join(NOUNS)
    one = rf"(?<![\d,.:=/-])\b1 (?:\w+ )?(?:{plurals})\b(?!_)"
    several = (
        rf"(?<![\d,.:=/-])\b(?:[2-9]|\d[\d,]*\d)(?: agent| env)? (?:{singulars})\b(?! (?:step|update|epochs))(?!$)"
    )
    agree = rf"(?<![\d,.:=/-])(?<!of )\b1 (?:{singulars}) (?:{VERBS})\b"
    return [
        wrong
        for cell in cells
        for pattern in (one, several, agree)
        for wrong in re.findall(pattern, cell)
        if not re.search(r"group [A-Z]\b|while 1 env steps", cell)
    ]


def test_disagreements_are_detected() -> None:
    for wrong in ("1 minibatch give 2", "with 1 rules  1 rows", "2 row of", "over 1 steps of 3", "33 minibatch here"):
        assert disagreements(wrong), wrong
    for right in ("1 minibatch gives 2 updates", "1 agent step", "256 rows", "2 agent steps", "steps  1  groups"):
        assert not disagreements(right), right


@pytest.mark.parametrize("number", range(len(OF_ONE)))
def test_plans_with_one_of_everything_are_grammatical(number: int) -> None:
    text = show(plan(deepcopy(OF_ONE[number]), host=Host(1, 8 << 30)))
    assert disagreements(text) == []


def test_comparisons_and_scales_are_grammatical() -> None:
    for first in OF_ONE:
        for second in OF_ONE:
            text = show_compare(compare(plan(deepcopy(first)), plan(deepcopy(second))))
            assert disagreements(text) == []
    assert disagreements(show_scale(scale("grid", [], "trainer.update_epochs=1,2", None, None))) == []
