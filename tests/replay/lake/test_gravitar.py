"""Gravitar, recorded from the real emulator: sampled stacks equal the emulator's, at a fiftieth of the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from millpond.replay import Field, Lake, Schema, Steps
from millpond.replay.tools import compact, info, verify

SCHEMA = Schema(
    (Field.of("observation", (84, 84), "uint8"),), Field("action", (), "int32"), (Field("id", (), "int64"),)
)
LANES = 8
# The documents store (3, 84, 84) twice.
DOCUMENTS_BYTES = 2 * 3 * 84 * 84


def checksums(stacks: Any) -> np.ndarray[Any, Any]:
    return np.array([google_crc32c.value(stack.tobytes()) for stack in stacks], np.uint32)


def record(folder: Path, steps: int, steps_per_append: int, frames_per_episode: int) -> tuple[dict[str, Any], int]:
    """Play randomly; store single frames in the lake, and return checksums of the emulator's stacks for comparison."""
    atari = pytest.importorskip("ale_py.vector_env")
    env = atari.AtariVectorEnv(
        "gravitar", LANES, stack_num=4, reward_clipping=False, repeat_action_probability=0.25,
        autoreset_mode=AutoresetMode.SAME_STEP, max_num_frames_per_episode=frames_per_episode,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    observed, _ = env.reset(seed=0)
    expected: dict[str, Any] = {"now": [], "then": [], "reward": [], "terminated": []}
    ended_episodes = 0
    with Lake.create(folder, SCHEMA, segment_bytes=32 << 20) as lake, lake.writer("a", LANES) as writer:
        for begin in range(0, steps, steps_per_append):
            columns: dict[str, list[Any]] = {
                name: [] for name in ("frame", "action", "reward", "terminated", "truncated")
            }
            finals = []
            for _ in range(steps_per_append):
                action = rng.integers(0, 18, LANES)
                following, reward, terminated, truncated, infos = env.step(action)
                ended = terminated | truncated
                next_observed = (
                    np.where(ended[:, None, None, None], infos["final_obs"], following) if ended.any() else following
                )
                expected["now"].append(checksums(observed))
                expected["then"].append(checksums(next_observed))
                values = (observed[:, -1].copy(), action, reward, terminated, truncated)
                for name, value in zip(columns, values, strict=True):
                    columns[name].append(value)
                finals += [frame.copy() for frame in next_observed[ended, -1]]
                ended_episodes += int(ended.sum())
                observed = following.copy()
            arrays = {name: np.stack(value) for name, value in columns.items()}
            expected["reward"].append(arrays["reward"])
            expected["terminated"].append(arrays["terminated"])
            writer.append(
                Steps(
                    arrays["frame"],
                    arrays["action"],
                    arrays["reward"],
                    arrays["terminated"],
                    arrays["truncated"],
                    final_observation=np.array(finals) if finals else None,
                    has_final=arrays["terminated"] | arrays["truncated"],
                    extra={"id": begin * LANES + np.arange(steps_per_append * LANES).reshape(steps_per_append, LANES)},
                )
            )
    env.close()
    return {name: np.concatenate(value).reshape(-1) for name, value in expected.items()}, ended_episodes


def compare(folder: Path, expected: dict[str, Any], samples: int) -> None:
    with Lake(folder) as lake:
        batch = lake.sample(samples, np.random.default_rng(1), stack=4)
    ids = batch.record["id"]
    assert batch.observation.shape == (samples, 4, 84, 84)
    np.testing.assert_array_equal(checksums(batch.observation), expected["now"][ids])
    np.testing.assert_array_equal(checksums(batch.next_observation), expected["then"][ids])
    np.testing.assert_array_equal(batch.reward, expected["reward"][ids].astype(np.float32))
    np.testing.assert_array_equal(batch.terminated, expected["terminated"][ids])


def test_stacks_equal_those_of_the_emulator(tmp_path: Path) -> None:
    expected, ended = record(tmp_path / "lake", steps=360, steps_per_append=24, frames_per_episode=240)
    assert ended >= LANES * 5
    compare(tmp_path / "lake", expected, 4_000)
    # Episodes this short have a final observation every 60 steps, and still:
    assert info(tmp_path / "lake").bytes_a_transition <= DOCUMENTS_BYTES / 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_200_000_transitions_are_stored_compactly(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    expected, ended = record(folder, steps=25_000, steps_per_append=500, frames_per_episode=108_000)
    assert ended > 50
    contents = info(folder)
    print("\n".join(contents.lines()))
    assert 200_000 - LANES <= contents.transitions <= 200_000
    assert contents.bytes_a_transition <= DOCUMENTS_BYTES / 50
    for _ in range(5):
        compare(folder, expected, 4_000)
    assert verify(folder).good
    sizes = compact(folder)
    print(sizes)
    assert sizes.segments >= 3
    assert sizes.after < sizes.before / 3
    compare(folder, expected, 2_000)
