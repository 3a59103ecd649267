"""Episodes that are recorded step by step, and the processes that record them."""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from millpond.board import tasks as module
from millpond.board.player import MAX_FRAME, play, png
from millpond.board.tasks import BoardTask, BoardTasks, BusyError
from tests.support.ppo_runs import train_small

ALONE = {"env.num_agents": 1, "env.stagger": False, "env.max_steps": None, "trainer.total_iterations": 1}


def test_episode_of_a_grid_is_its_states_actions_and_rewards(tmp_path: Path) -> None:
    run = train_small(tmp_path, "pond", **{"trainer.total_iterations": 1}).run
    episode = play(run.folder, best=False, seed=5)
    assert episode["steps"] == episode["length"] == len(episode["rewards"]) == len(episode["grid"]["steps"]) == 20
    assert np.sum(episode["rewards"], axis=0) == pytest.approx(episode["returns"], abs=1e-4)
    assert play(run.folder, best=False, seed=5)["actions"] == episode["actions"]
    agent, cells = len(episode["grid"]["cell_names"]) - 1, np.array(episode["grid"]["map"])
    moved = 0
    directions = {"noop": (0, 0), "north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
    steps = episode["grid"]["steps"]
    for before, after, actions in zip(steps[:-1], steps[1:], episode["actions"][:-1], strict=True):
        for old, new, action in zip(before["agents"], after["agents"], actions, strict=True):
            went = (new[0] - old[0], new[1] - old[1])
            assert went in ((0, 0), directions[episode["action_names"][int(action)]])
    for step, action in zip(episode["grid"]["steps"], episode["actions"], strict=True):
        for row, column, code in step["cells"]:
            cells[row, column] = code
        moved += bool(step["cells"])
        assert sorted(map(tuple, step["agents"])) == sorted(map(tuple, np.argwhere(cells == agent).tolist()))
        assert len(action) == 3
    assert moved > 5
    json.dumps(episode, allow_nan=False)


def test_other_envs_are_drawn_or_say_why_not(tmp_path: Path) -> None:
    drawn = train_small(tmp_path, "bar", **{**ALONE, "env.id": "tests.support.custom_envs:make_bar"}).run
    episode = play(drawn.folder, best=True, seed=None)
    assert len(episode["frames"]) == episode["steps"] == episode["length"]
    frames = [np.asarray(Image.open(io.BytesIO(base64.b64decode(frame)))) for frame in episode["frames"]]
    assert frames[0].shape[2] == 3
    assert any(not np.array_equal(frames[0], frame) for frame in frames[1:])
    blind = train_small(tmp_path, "blind", **{**ALONE, "env.id": "tests.support.custom_envs:make_no_render"}).run
    episode = play(blind.folder, best=True, seed=None)
    assert episode["frames"] == []
    assert "cannot be drawn" in episode["caption"]
    assert len(episode["rewards"]) == episode["length"]


def test_large_frames_are_reduced() -> None:
    image = Image.open(io.BytesIO(png(np.zeros((1000, 400, 3), np.uint8))))
    assert max(image.size) <= MAX_FRAME
    assert image.size == (100, 250)


def test_results_and_errors_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = BoardTasks()
    tasks._turn.acquire()  # so that a command can be set before it starts
    monkeypatch.setattr(module, "MAX_OUTPUT", 1000)

    def end(code: str, key: str) -> BoardTask:
        task = tasks.start([], key=key)
        task.command[:] = [sys.executable, "-c", code]
        tasks._turn.release()
        while task.state in ("waiting", "working"):
            time.sleep(0.02)
        tasks._turn.acquire()
        return task

    done = end("print('{\"a\": 1}')", "one")
    assert (done.state, done.result) == ("done", {"a": 1})
    assert tasks.start([], key="one") is done
    failed = end("raise SystemExit('because')", "two")
    assert (failed.state, failed.error) == ("failed", "because")
    assert end("print('x' * 5000)", "three").error == "its result is larger than 1,000 bytes"
    assert end("print('no JSON')", "four").state == "failed"
    monkeypatch.setattr(module, "SECONDS", 0.3)
    assert "took longer" in end("import time; time.sleep(60)", "five").error


def test_waiting_tasks_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = BoardTasks()
    with tasks._turn:
        for number in range(module.MAX_WAITING):
            tasks.start(["this", "never", "starts"], key=str(number))
        with pytest.raises(BusyError, match="waiting already"):
            tasks.start([], key="more")
        tasks.close()


def test_unknown_task_is_none() -> None:
    unknown: Any = BoardTasks().get("../../etc/passwd")
    assert unknown is None
