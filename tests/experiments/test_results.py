"""Results of runs are small files that count as done without the run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from millpond.config import load
from millpond.durable import replace_json
from millpond.envs.spec import ActionSpec
from millpond.experiments.file import read_experiment
from millpond.experiments.results import (
    EARLIER_FILE,
    MAX_POINTS,
    RandomPlayer,
    RunResult,
    collect_results,
    curve_of,
    evaluate_random_player,
    read_result,
    result_path,
)
from millpond.experiments.run import is_done

RESULT = {"episodes": 100, **asdict(RunResult(4.5, 10, 512, 1.5, None, curve=[[256.0, 1.0], [512.0, 4.5]]))}


def test_a_result_file_counts_as_done_without_its_run(tmp_path: Path) -> None:
    experiment = read_experiment("mixture-vs-single", worlds=["minatar:breakout"], methods=["single"], seeds=2)
    run = experiment.run_name("minatar:breakout", "single", 2)
    assert run == "minatar-breakout.single.seed2"
    assert not is_done(tmp_path, experiment, run)
    result_path(tmp_path, run).parent.mkdir()
    replace_json(result_path(tmp_path, run), RESULT)
    assert is_done(tmp_path, experiment, run)
    collected = collect_results(tmp_path, experiment)
    assert {seed: one.score for seed, one in collected["minatar:breakout"]["single"].items()} == {2: 4.5}


def test_a_result_of_an_earlier_version_in_the_run_folder_counts(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "minatar-breakout.single.seed1"
    folder.mkdir(parents=True)
    earlier = {key: value for key, value in RESULT.items() if key != "curve_seconds"}
    (folder / EARLIER_FILE).write_text(json.dumps(earlier))
    found = read_result(tmp_path, folder.name, 100)
    assert found is not None
    assert (found.score, found.curve_seconds) == (4.5, [])
    assert read_result(tmp_path, folder.name, 50) is None  # of other episodes


def test_a_curve_is_of_the_evaluations_if_there_are_several() -> None:
    training = [{"frames": 10.0 * k, "seconds": float(k), "episode_return": float(k)} for k in range(1, 501)]
    curve = curve_of([{**training[0], "eval/episode_return": 7.0}, *training[1:]])
    assert len(curve) <= MAX_POINTS
    assert curve[-1] == (5000.0, 500.0, 500.0)  # frames, return, seconds
    evaluated = [{**record, "eval/episode_return": 7.0} for record in training[:2]]
    assert curve_of([*evaluated, *training[2:]]) == [(10.0, 7.0, 1.0), (20.0, 7.0, 2.0)]


def test_a_random_player_acts_within_bounds_and_masks() -> None:
    player = RandomPlayer(ActionSpec.mixed((3, 2), (-2.0, 0.0), (2.0, float("inf"))), seed=0)
    mask = torch.ones(400, 7, dtype=torch.bool)
    mask[:, 1], mask[:, 3], mask[:, 6] = False, False, False  # of the choices: 1 of the first, 0 of the second
    state = player.initial_state(400, torch.device("cpu"))
    action = player.act(torch.zeros(400, 1), state, action_mask=mask).action.numpy()
    assert set(np.unique(action[:, 0])) == {0.0, 2.0}
    assert set(np.unique(action[:, 1])) == {1.0}
    assert action[:, 2].min() >= -2.0
    assert action[:, 2].max() <= 2.0
    assert abs(action[:, 2].mean()) < 0.3
    assert set(np.unique(action[:, 3])) == {0.0}


def test_a_random_player_plays_any_world() -> None:
    for recipe, low, high in (("gymnasium:CartPole-v1", 10, 50), ("gymnasium:Pendulum-v1", -1_800, -600)):
        played = evaluate_random_player(load(recipe).recipe, episodes=10, seed=3)
        assert low < played.mean < high
