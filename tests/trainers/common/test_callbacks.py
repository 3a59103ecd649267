"""Callbacks: their events in every kind of recipe, what they may do, and the end of a run that one of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millpond
from millpond.errors import MillpondError
from millpond.store import read_status
from tests.support.ball_env import TINY, Ball
from tests.support.mixture_runs import SMALL
from tests.support.reward_runs import TINY_REWARD


class Log:
    """Remembers the names of events, and what came with them."""

    def __init__(self) -> None:
        self.events: list[millpond.Event] = []

    def on_start(self, event: millpond.Event) -> None:
        self.events.append(event)

    on_iteration = on_evaluation = on_checkpoint = on_end = on_start

    def of(self, name: str) -> list[millpond.Event]:
        return [event for event in self.events if event.name == name]


def train(folder: Path, callbacks: Any, recipe: Any = None, **settings: Any) -> millpond.Run:
    env = Ball if recipe is None else None
    sizes = {**TINY, "vector.backend": "inline"} if recipe is None else {}
    return millpond.train(
        recipe, env=env, run="pond", callbacks=callbacks, overrides={**sizes, "run_dir": str(folder), **settings}
    )


def test_events_of_ppo_come_in_order_with_counters_metrics_run_and_policy(tmp_path: Path) -> None:
    log = Log()
    run = train(tmp_path, log)
    iteration = ["iteration", "checkpoint"]
    assert [event.name for event in log.events] == [
        "start", *iteration, *iteration, "evaluation", *iteration, "end"
    ]  # fmt: skip
    assert [event.counters["updates"] for event in log.of("iteration")] == [2, 4, 6]
    last = log.of("iteration")[-1]
    assert last.metrics["entropy"] == run.metrics()["entropy"][-1]
    assert last.run.folder == run.folder
    assert last.policy is not None
    assert last.policy.predict(np.zeros(1, np.float32))[0] in (0, 1)
    assert log.of("evaluation")[0].evaluation.mean == run.metrics()["eval/episode_return"][-1]
    assert [event.checkpoint.name for event in log.of("checkpoint") if event.checkpoint][-1].endswith("6")
    assert (log.of("end")[0].finished, log.of("end")[0].stopped) == (True, None)


@pytest.mark.parametrize(
    ("recipe", "settings", "has_policy"), [("mixture", SMALL, True), ("reward", TINY_REWARD, False)]
)
def test_other_kinds_have_the_same_events(tmp_path: Path, recipe: str, settings: Any, has_policy: bool) -> None:
    log = Log()

    def record(event: millpond.Event) -> None:
        event.record("own/number", 2.5)

    run = train(tmp_path, [log, record], recipe, **settings)
    assert {event.name for event in log.events} == {"start", "iteration", "evaluation", "checkpoint", "end"}
    assert len(log.of("iteration")) == len(run.metrics()["updates"])
    assert (run.metrics()["own/number"] == 2.5).all()
    assert (log.of("evaluation")[0].policy is not None) == has_policy
    assert log.of("evaluation")[0].metrics == log.of("evaluation")[0].evaluation.metrics()


def test_callback_saves_and_stops(tmp_path: Path) -> None:
    log = Log()

    def once(event: millpond.Event) -> None:
        event.save() if event.counters["updates"] == 2 else event.stop("that will do")

    run = train(tmp_path, [log, once], **{"checkpoint.interval": None})
    assert [event.counters["updates"] for event in log.of("checkpoint")] == [2, 4]
    assert log.of("end")[0].stopped == "that will do"
    assert (read_status(run.folder).state, read_status(run.folder).note) == ("stopped", "that will do")


@pytest.mark.parametrize("name", ["start", "iteration", "evaluation", "checkpoint", "end"])
def test_exception_ends_the_run_with_a_checkpoint_and_is_raised(tmp_path: Path, name: str) -> None:
    class Bad:
        pass

    def fail(event: millpond.Event) -> None:
        raise KeyError("lost")

    bad = Bad()
    setattr(bad, f"on_{name}", fail)
    with pytest.raises(KeyError, match="lost") as raised:
        train(tmp_path, bad, **{"eval.interval": 1})
    assert f"on_{name}; the run is saved in" in raised.value.__notes__[0]
    assert raised.traceback[-1].name == "fail"
    assert read_status(tmp_path / "pond").state == "failed"
    resumed = millpond.resume(tmp_path / "pond")
    updates = {"start": 0, "iteration": 2, "evaluation": 2, "checkpoint": 2, "end": 6}[name]
    assert resumed.metrics()["updates"].tolist() == [2, 4, 6]
    saved = {int(path.name) for path in (tmp_path / "pond" / "checkpoints").iterdir()}
    assert updates in saved


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("entropy", 1.0), "the run records 'entropy' itself"),
        (("updates", 1.0), "the run records 'updates' itself"),
        (("own", float("nan")), "a record holds finite numbers"),
    ],
)
def test_metric_that_cannot_be_recorded_is_refused(tmp_path: Path, arguments: Any, says: str) -> None:
    with pytest.raises(MillpondError, match=says):
        train(tmp_path, lambda event: event.record(*arguments))


def test_class_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match=r"callback Log is a class; pass an object of it: Log\(\)"):
        train(tmp_path, [Log])


SCRIPT = """
import millpond
from tests.support.ball_env import TINY, Ball, Net

def callback(event):
    event.record("own/updates", event.counters["updates"])
    event.save()
    if event.counters["updates"] == 4:
        event.stop("enough")

sizes = {**TINY, "trainer.num_workers": 2, "checkpoint.interval": None, "run_dir": "runs"}
millpond.train(env=lambda: Ball(), policy=Net, callbacks=[callback], run="pond", overrides=sizes)
"""


@pytest.mark.slow
def test_ranks_save_and_stop_together_when_a_callback_of_rank_0_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(launcher, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = millpond.Run.open(tmp_path / "runs", "pond")
    assert run.metrics()["own/updates"].tolist() == [2, 4]
    assert sorted(int(path.name) for path in run.checkpoints_path.iterdir()) == [2, 4]
