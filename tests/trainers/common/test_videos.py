"""Videos of evaluations: they reach the sinks, and do not change the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import millpond
from tests.support.ppo_runs import SMALL
from tests.support.records import records


def train(folder: Path, name: str, **changes) -> millpond.Run:
    return millpond.train("grid", run=name, overrides={**SMALL, "run_dir": str(folder), **changes})


def test_videos_reach_tensorboard_and_change_nothing(tmp_path: Path) -> None:
    plain = train(tmp_path, "plain")
    run = train(tmp_path, "filmed", **{"log.videos": True, "log.tensorboard": True})
    assert records(run.folder) == records(plain.folder)
    evaluated = [int(each["updates"]) for each in records(run.folder) if "eval/episode_return" in each]
    assert len(evaluated) == 2
    assert [path.name for path in sorted(run.videos_path.iterdir())] == [f"{updates:012d}.gif" for updates in evaluated]
    events = EventAccumulator(str(run.tensorboard_path), size_guidance={"images": 0})
    events.Reload()
    images = events.Images("eval/episode")
    assert len(images) == 2
    assert images[0].encoded_image_string.startswith(b"GIF89a")
    assert (images[0].width, images[0].height) == (12 * 8, 12 * 8)


def test_env_that_cannot_be_drawn_gives_one_warning(tmp_path: Path) -> None:
    settings = {key: value for key, value in SMALL.items() if not key.startswith("env.grid.")}
    settings |= {
        "env.id": "tests.support.custom_envs:make_no_render",
        "env.num_agents": 1,
        "env.max_steps": None,
        "run_dir": str(tmp_path),
        "log.videos": True,
    }
    with pytest.warns(UserWarning, match=r"log\.videos: no videos of this run: .*cannot be drawn") as caught:
        run = millpond.train("grid", run="blind", overrides=settings, trust=True)
    assert len([each for each in caught if "log.videos" in str(each.message)]) == 1
    assert len(records(run.folder)) == 4
