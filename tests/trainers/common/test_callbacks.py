"""Callbacks: their events in every kind of recipe, what they may do, and the end of a run that one of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millpond
from millpond.errors import MillpondError
from millpond.store import CheckpointError, read_status
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
        (("own", "fast"), r"record\('own', 'fast'\): a record holds numbers"),
        (("own", [1.0, 2.0]), "a record holds numbers"),
        (("own", torch.zeros(2)), "a record holds numbers"),
        ((" ", 1.0), "a name is printable text"),
        (("two\nlines", 1.0), "a name is printable text"),
        ((3, 1.0), "a name is printable text"),
    ],
)
def test_metric_that_cannot_be_recorded_is_refused(tmp_path: Path, arguments: Any, says: str) -> None:
    with pytest.raises(MillpondError, match=says):
        train(tmp_path, lambda event: event.record(*arguments))


class Misspelled:
    def on_start(self, event: millpond.Event) -> None: ...

    def on_iteraton(self, event: millpond.Event) -> None: ...


def test_method_that_would_never_be_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match="method on_iteraton, which is never called; did you mean on_iteration"):
        train(tmp_path, [Misspelled()])


def test_class_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match=r"callback Log is a class; pass an object of it: Log\(\)"):
        train(tmp_path, [Log])


class Wander:
    """Records a walk of its own; its state has everything that a checkpoint can hold."""

    def __init__(self) -> None:
        self.generator, self.place, self.seen = np.random.default_rng(5), torch.zeros(2), []

    def on_iteration(self, event: millpond.Event) -> None:
        self.place += torch.from_numpy(self.generator.normal(size=2).astype(np.float32))
        self.seen.append(event.counters["updates"])
        event.record("walk/place", float(self.place.sum()))
        event.record("walk/iterations", len(self.seen))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state, "place": self.place, "seen": np.array(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        self.place, self.seen = state["place"], state["seen"].tolist()


class Stop:
    """Stops at a number of updates, unless the run has been resumed."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_iteration(self, event: millpond.Event) -> None:
        if not event.run.resumed and event.counters["updates"] >= self.updates:
            event.stop("halfway")


LONGER_REWARD = {**TINY_REWARD, "reward.cycles": 3}


@pytest.mark.parametrize(
    ("recipe", "settings", "updates"), [(None, {}, 4), ("mixture", SMALL, 30), ("reward", LONGER_REWARD, 4)]
)
def test_state_of_callbacks_resumes_exactly_in_every_kind(
    tmp_path: Path, recipe: str | None, settings: Any, updates: int
) -> None:
    whole = train(tmp_path / "whole", Wander(), recipe, **settings)
    parts = train(tmp_path / "parts", [Wander(), Stop(updates)], recipe, **settings)
    stopped_after = len(parts.metrics()["updates"])
    parts = millpond.resume(parts, callbacks=[Stop(updates), Wander()])
    walks = [run.metrics()["walk/place"] for run in (whole, parts)]
    assert 0 < stopped_after < len(walks[0])
    np.testing.assert_array_equal(walks[0], walks[1])
    assert parts.metrics()["walk/iterations"].tolist() == list(range(1, len(walks[0]) + 1))


class Count:
    """Counts its iterations in a state of one number."""

    def __init__(self) -> None:
        self.iterations = 0

    def on_iteration(self, event: millpond.Event) -> None:
        self.iterations += 1

    def state_dict(self) -> dict[str, Any]:
        return {"iterations": self.iterations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterations = state["iterations"]


def test_callbacks_of_one_class_are_told_apart_by_their_order(tmp_path: Path) -> None:
    first, second = Count(), Count()
    second.iterations = 100
    run = train(tmp_path, [first, lambda event: None, second])
    first, second = Count(), Count()
    millpond.resume(run, callbacks=[first, second])
    assert (first.iterations, second.iterations) == (3, 103)


def test_state_of_a_callback_that_was_not_passed_stays_in_the_checkpoints(tmp_path: Path) -> None:
    run = train(tmp_path, Count())
    with pytest.warns(UserWarning, match="has the state of a callback Count, which was not passed; it stays in"):
        millpond.resume(run, **{"trainer.total_iterations": 4})
    assert run.checkpoint().updates == 8
    count = Count()
    millpond.resume(run, callbacks=count, **{"trainer.total_iterations": 5})
    assert count.iterations == 4, "three before, none in the resumed run without it, one now"


def test_callback_that_is_new_to_a_resumed_run_starts_as_it_was_passed(tmp_path: Path) -> None:
    run = train(tmp_path, [])
    assert "callbacks" not in run.checkpoint().state, "an older Millpond reads it"
    count = Count()
    with pytest.warns(
        UserWarning, match="the callback Count has no state in the checkpoint; it starts as it was passed"
    ):
        millpond.resume(run, callbacks=count, **{"trainer.total_iterations": 4})
    assert count.iterations == 1


def test_state_that_no_checkpoint_can_hold_ends_the_run_at_its_start(tmp_path: Path) -> None:
    count = Count()
    count.iterations = object()  # type: ignore[assignment]
    with pytest.raises(
        MillpondError, match=r"the callback Count: state_dict\(\)\['iterations'\] is a builtins.object; a "
    ):
        train(tmp_path, count)
    assert not (tmp_path / "pond" / "metrics.jsonl").read_text()


def test_exception_in_state_dict_ends_the_run_with_a_checkpoint_of_everything_else(tmp_path: Path) -> None:
    class Late(Count):
        def state_dict(self) -> dict[str, Any]:
            if self.iterations == 2:
                raise KeyError("lost")
            return super().state_dict()

    with pytest.raises(KeyError, match="lost") as raised:
        train(tmp_path, [Late(), Count()])
    assert raised.value.__notes__ == [
        "raised by the callback Late.state_dict; this state is not in the newest checkpoint"
    ]
    saved = millpond.Run.open(tmp_path, "pond").checkpoint()
    assert (saved.updates, saved.state["callbacks"]) == (4, {"Count": {"iterations": 2}})
    with pytest.warns(UserWarning, match="Late has no state"):
        resumed = millpond.resume(tmp_path / "pond", callbacks=[count := Count(), Late()])
    assert resumed.metrics()["updates"].tolist() == [2, 4, 6]
    assert count.iterations == 3


def test_state_that_does_not_fit_is_refused_by_the_name_of_its_callback(tmp_path: Path) -> None:
    run = train(tmp_path, Count())

    class Renamed(Wander):
        pass

    Renamed.__name__ = "Count"
    with pytest.raises(
        CheckpointError, match=r"callback Count does not fit: load_state_dict raised KeyError: 'generator'"
    ):
        millpond.resume(run, callbacks=Renamed())


def test_state_dict_without_its_counterpart_is_refused(tmp_path: Path) -> None:
    class Half:
        def on_iteration(self, event: millpond.Event) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(MillpondError, match="callback Half has state_dict but no load_state_dict"):
        train(tmp_path, Half())


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
