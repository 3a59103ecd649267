"""The writer: invalid input, episode boundaries, order of syncs, rollback, and the limit `max_bytes`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.data import open_episodes
from millpond.replay import Field, Lake, LakeDamaged, LakeError, Schema, Steps
from millpond.replay.lake.write import MAX_EPISODES
from millpond.replay.tools import repair, verify
from tests.support.naive_lake import FRAME, NaiveLake, assert_transition

VECTOR = Schema((Field("observation", (2,), "float32"),), Field("action", (), "int32"))
LIMIT = 600_000  # bytes


def steps(count: int = 3, lanes: int = 2, **changes: object) -> Steps:
    shape = (count, lanes)
    values: dict[str, object] = {
        "observation": np.arange(count * lanes * 2, dtype=np.float32).reshape(*shape, 2),
        "action": np.zeros(shape, np.int64),
        "reward": np.ones(shape),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
    }
    return Steps(**{**values, **changes})  # type: ignore[arg-type]


TRUNCATED = np.array([[False, True], [False, False], [False, False]])
ENDED = np.array([[False, True], [False, False], [True, False]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": np.ones((3, 4))}, r"reward has shape \(3, 4\); expected \[T, 2\]"),
        ({"observation": np.ones((3, 2, 5))}, r"'observation' has shape \(3, 2, 5\); expected \(3, 2, 2\)"),
        ({"action": np.full((3, 2), 0.5)}, "'action' has dtype float64, and values that int32 cannot hold"),
        ({"truncated": TRUNCATED}, "1 truncated step without a final observation"),
        ({"has_final": TRUNCATED}, "has_final is set where no episode ended"),
        (
            {"truncated": TRUNCATED, "final_observation": np.ones((2, 2))},
            "has 2 entries, and 1 steps are truncated and 1",
        ),
        ({"truncated": TRUNCATED, "final_observation": np.ones((1, 5))}, r"shape \(1, 5\); expected \(1, 2\)"),
        (
            {"terminated": ENDED, "final_observation": np.ones((1, 2))},
            "1 entries, and 0 steps are truncated and 2 end an",
        ),
        ({"final_observation": np.ones((1, 2))}, "has 1 entries, and 0 steps are truncated and 0 end an episode"),
        (
            {"terminated": ENDED, "has_final": TRUNCATED, "final_observation": np.ones((2, 2))},
            "has 2 entries, and has_final is set for 1",
        ),
        ({"terminated": ENDED, "has_final": ENDED}, "has 0 entries, and has_final is set for 2"),
        ({"extra": {"speed": 1}}, r"extra has \['speed'\]"),
        ({"round": -1}, "round=-1..-1 must be between 0"),
        ({"epsilon": np.ones(5)}, "epsilon has shape"),
        ({"terminated": np.zeros(3)}, r"terminated has shape \(3,\); expected \(3, 2\)"),
    ],
)
def test_invalid_steps_are_refused_with_a_reason(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with Lake.create(tmp_path, VECTOR) as lake, lake.writer("a", 2) as writer:
        with pytest.raises(LakeError, match=message):
            writer.append(steps(**changes))
        assert writer.position == 0
        writer.append(steps())


LAST = np.array([[False], [False], [True]])


@pytest.mark.parametrize("has_final", [None, LAST], ids=["by their number", "by has_final"])
def test_final_observation_of_a_terminated_episode_is_stored_if_passed(
    tmp_path: Path, has_final: np.ndarray[Any, Any] | None
) -> None:
    final = np.array([[7.0, 8.0]], np.float32)
    with Lake.create(tmp_path, VECTOR) as lake:
        with lake.writer("a", 1) as writer:
            writer.append(steps(lanes=1, terminated=LAST, final_observation=final, has_final=has_final))
            writer.append(steps(lanes=1, terminated=LAST))
        lake.refresh()
        known, unknown = lake.episodes()
        assert known.has_final
        np.testing.assert_array_equal(known.observation[-1], final[0])
        assert not unknown.has_final
        assert len(unknown.observation) == len(unknown.reward) == 3
        batch = lake.sample(200, np.random.default_rng(0))
        last = batch.terminated & (batch.record["episode"] == 0)
        np.testing.assert_array_equal(batch.next_observation[last], np.repeat(final, last.sum(), axis=0))
        assert not batch.next_observation[batch.terminated & ~last].any()
        assert not batch.discount[batch.terminated].any()  # neither is bootstrapped from
    data = open_episodes(tmp_path)
    assert data.final_known.tolist() == [True, False]
    got = data.gather(np.array([0, 1]), np.array([[2], [2]])).next_observation["vector"][:, 0]
    np.testing.assert_array_equal(got, [final[0], unknown.observation[-1]])


def test_truncated_step_bootstraps_from_its_final_observation(tmp_path: Path) -> None:
    final = np.array([[7.0, 8.0]], np.float32)
    with Lake.create(tmp_path, VECTOR) as lake:
        with lake.writer("a", 1) as writer:
            writer.append(steps(lanes=1, truncated=LAST, final_observation=final))
        lake.refresh()
        batch = lake.sample(100, np.random.default_rng(0))
        np.testing.assert_array_equal(batch.next_observation[batch.truncated][0], final[0])
        assert (batch.discount[batch.truncated] > 0).all()


def test_provenance_is_stored(tmp_path: Path) -> None:
    epsilon = np.linspace(0, 1, 6).reshape(3, 2)
    with Lake.create(tmp_path, VECTOR) as lake:
        with lake.writer("a", 2) as writer:
            ack = writer.append(steps(agent=3, round=7, policy_version=np.array([5, 6]), epsilon=epsilon))
        assert (ack.stream, ack.commits, ack.steps, ack.records) == ("a", 1, 6, 6)
        lake.refresh()
        batch = lake.sample(50, np.random.default_rng(0))
        for record in batch.record:
            t, lane = int(record["episode_step"]), int(record["lane"])
            assert record["epsilon"] == np.float32(epsilon[t, lane])
            assert (record["agent"], record["round"], record["policy_version"]) == (3, 7, 5 + lane)
            assert record["episode"] == lane
            assert abs(record["time"] - 1.7e9) < 1e9


def test_reopened_stream_continues_episodes_only_if_asked(tmp_path: Path) -> None:
    with Lake.create(tmp_path, VECTOR) as lake:
        for open_again, expected in ((False, 4), (True, 10), (False, 14)):
            with lake.writer("a", 2, continue_episodes=open_again) as writer:
                writer.append(steps())
            lake.refresh()
            assert lake.transitions() == expected
        with lake.writer("a", 2, continue_episodes=True) as writer:
            writer.cut(lanes=[1])
            writer.append(steps())
        lake.refresh()
        # Lane 0 went on: its last step of before has a next observation now. Lane 1 did not.
        assert lake.transitions() == 14 + 3 + 2
        records = lake.sample(500, np.random.default_rng(0)).record
        assert np.unique(records["episode"]).tolist() == [0, 1, 2, 3, 4]


def test_stream_without_free_episode_numbers_is_refused(tmp_path: Path) -> None:
    with Lake.create(tmp_path, VECTOR) as lake, lake.writer("a", 2) as writer:
        writer._lanes.next_episode = MAX_EPISODES - 2
        writer.append(steps())  # two lanes: two episodes
        writer._lanes.open[:] = False
        with pytest.raises(LakeError, match=r"stream 'a' has had 4,294,967,295 episodes, its most; use another stream"):
            writer.append(steps())
        assert writer.position == 1


def test_writer_is_refused_after_a_rollback_that_did_not_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head still limits the log to the rollback's position: after a power cut an append would be gone."""
    with Lake.create(tmp_path, VECTOR) as lake, lake.writer("a", 2) as writer:
        writer.append(steps())
        writer.append(steps())
        publish = writer._publish

        def fail_to_lift_the_limit(commits: int | None = None, **options: Any) -> None:
            if "limit" not in options:
                raise OSError(errno.EIO, "Input/output error")
            publish(commits, **options)

        with monkeypatch.context() as patched:
            patched.setattr(writer, "_publish", fail_to_lift_the_limit)
            with pytest.raises(OSError, match="Input/output error"):
                writer.rollback(1)
        with pytest.raises(LakeError, match="a rollback did not finish; open a new writer"):
            writer.append(steps())
        writer.close()
        with lake.writer("a", 2) as again:
            assert again.position == 1
            assert again.append(steps()).commits == 2


def test_rollback_removes_appends_and_continues_open_episodes(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(0)
    with Lake.create(tmp_path, FRAME, segment_bytes=4_000) as lake, lake.writer("a", 3) as writer:
        for _ in range(20):
            writer.append(naive.generate("a", 3, 4, rng, FRAME, fresh=False, ends=0.1))
        lake.refresh()
        assert len(lake.view("a").segments) > 4
        follower = Lake(tmp_path)
        assert writer.rollback(6) == 14
        assert writer.position == 6
        again, replay = NaiveLake(), np.random.default_rng(0)
        for _ in range(6):
            again.generate("a", 3, 4, replay, FRAME, fresh=False, ends=0.1)
        for _ in range(9):
            writer.append(again.generate("a", 3, 4, replay, FRAME, fresh=False, ends=0.1))
        valid = again.transitions(stack=2, n_step=1, gamma=1.0, repeat=False)
        for reader in (lake, follower):
            reader.refresh()
            assert reader.transitions(2) == len(valid)
            assert set(reader.sample(3_000, rng, stack=2).record["id"].tolist()) == set(valid)
        with pytest.raises(LakeError, match=r"position=99 is not in 0\.\.15"):
            writer.rollback(99)
        follower.close()


def test_invalid_names_lanes_schemas_and_versions_are_refused(tmp_path: Path) -> None:
    with Lake.create(tmp_path, VECTOR) as lake:
        for name in ("", "../up", ".hidden", "a/b"):
            with pytest.raises(LakeError, match="a name has"):
                lake.writer(name, 1)
        lake.writer("a", 2).close()
        with pytest.raises(LakeError, match="has 2 lanes, not 3"):
            lake.writer("a", 3)
        with pytest.raises(LakeError, match="between 1 and"):
            lake.writer("b", 0)
        with pytest.raises(LakeError, match="another schema"):
            Lake.create(tmp_path, FRAME)
        with pytest.raises(LakeError, match="append first"):
            lake.sample(1, np.random.default_rng(0))
    with pytest.raises(LakeError, match=r"it has no lake\.json"):
        Lake(tmp_path / "streams")
    manifest = tmp_path / "lake.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version": 2', b'"version": 1'))
    with pytest.raises(LakeDamaged, match="checksum"):
        Lake(tmp_path)


def test_lake_does_not_import_torch() -> None:
    code = "import sys, millpond.replay; assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_data_is_synced_before_the_log_and_the_log_before_the_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    names: dict[int, str] = {}
    original = {name: getattr(os, name) for name in ("open", "pwrite", "fdatasync")}

    def opened(path: str | Path, *arguments: int) -> int:
        fd = original["open"](path, *arguments)
        names[fd] = Path(path).name
        return fd

    def logged(name: str) -> Any:
        def call(fd: int, *arguments: Any) -> Any:
            calls.append(f"{name} {names.get(fd, '?').rpartition('.')[2]}")
            return original[name](fd, *arguments)

        return call

    monkeypatch.setattr(os, "open", opened)
    for name in ("pwrite", "fdatasync"):
        monkeypatch.setattr(os, name, logged(name))
    with Lake.create(tmp_path, FRAME) as lake, lake.writer("a", 1) as writer:
        calls.clear()
        writer.append(NaiveLake().generate("a", 1, 3, np.random.default_rng(0), FRAME, fresh=False, ends=0))
        assert calls == [
            "pwrite lz4", "pwrite steps", "fdatasync lz4", "fdatasync steps",
            "pwrite commits", "fdatasync commits", "pwrite head",
        ]  # fmt: skip


def test_failed_sync_closes_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the content of the disk is unknown: a new writer must read it."""
    with Lake.create(tmp_path, VECTOR) as lake:
        with lake.writer("a", 2) as writer:
            writer.append(steps())

            def fail(fd: int) -> None:
                raise OSError(5, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", fail)
                with pytest.raises(OSError, match="Input/output"):
                    writer.append(steps())
            with pytest.raises(LakeError, match=r"a sync failed .* open a new writer"):
                writer.append(steps())
        with lake.writer("a", 2) as writer:
            assert writer.position == 1
            writer.append(steps())


@pytest.mark.parametrize("kind", ["steps", "lz4"])
def test_writer_is_refused_if_bytes_of_an_append_are_missing(tmp_path: Path, kind: str) -> None:
    """If a disk reports syncs that did not happen, the log has an append whose data is shorter: that is a loss."""
    naive, rng = NaiveLake(), np.random.default_rng(0)
    with Lake.create(tmp_path, FRAME) as lake:
        with lake.writer("a", 2) as writer:
            for _ in range(3):
                writer.append(naive.generate("a", 2, 4, rng, FRAME, fresh=False, ends=0.1))
        file = tmp_path / "streams" / "a" / f"000000.{kind}"
        os.truncate(file, file.stat().st_size - 1)
        before = {path: path.read_bytes() for path in file.parent.iterdir() if path.name != "lock"}
        with pytest.raises(LakeDamaged, match=rf"000000.{kind}: has .* bytes; the log requires .*lake repair"):
            lake.writer("a", 2, continue_episodes=True)
        assert {path: path.read_bytes() for path in file.parent.iterdir() if path.name != "lock"} == before
        repair(tmp_path, accept_loss=True)
        with lake.writer("a", 2, continue_episodes=True) as writer:
            assert writer.position == 3
            writer.append(naive.generate("a", 2, 4, rng, FRAME, fresh=False, ends=0.1))
        lake.refresh()
        assert 0 < lake.transitions() < len(naive.transitions(stack=1, n_step=1, gamma=1.0, repeat=False))
        assert verify(tmp_path).good


def test_readers_see_only_acknowledged_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the sync of the log and the acknowledgement the log has more appends than the head."""
    head = tmp_path / "streams" / "a" / "head"
    with Lake.create(tmp_path, VECTOR) as lake, lake.writer("a", 2) as writer:
        writer.append(steps())
        earlier = head.read_bytes()
        writer.append(steps())
        head.write_bytes(earlier)
        assert Lake(tmp_path).reader("a").commits == 1
        lake.refresh()
        assert lake.reader("a").commits == 1
        monkeypatch.setattr("millpond.replay.lake.format.this_boot", lambda: b"another boot of the machine".ljust(36))
        lake.refresh()
        assert lake.reader("a").commits == 2


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in {".steps", ".lz4", ".zst", ".index"})


def test_max_bytes_holds_over_all_streams(tmp_path: Path) -> None:
    naive, rng, folder = NaiveLake(), np.random.default_rng(0), tmp_path / "lake"
    with Lake.create(folder, FRAME, max_bytes=LIMIT, segment_bytes=20_000) as lake:
        writers = {name: lake.writer(name, 2) for name in ("fast", "slow")}
        valid: dict[int, object] = {}
        for turn in range(500):
            for name in ("fast", "slow") if turn % 4 == 0 else ("fast",):
                writers[name].append(naive.generate(name, 2, 6, rng, FRAME, fresh=False, ends=0.1))
            assert used(folder) <= LIMIT
            if turn == 49:
                lake.refresh()
            if turn % 50 == 49:
                # The reader may look at files that are gone by now: it refreshes automatically.
                valid = naive.transitions(stack=3, n_step=1, gamma=1.0, repeat=False)
                batch = lake.sample(100, rng, stack=3)
                for i in range(0, 100, 9):
                    assert_transition(batch, i, valid[int(batch.record["id"][i])], FRAME, stacked=True)
        for writer in writers.values():
            writer.close()
        lake.refresh()
        assert used(folder) > LIMIT // 2
        shares = {name: lake.view(name).transitions() for name in lake.streams}
        # `slow` wrote a fifth of all and keeps nearly everything, since `fast` always held more.
        assert shares["slow"] > 125 * 12 * 0.8
        assert shares["fast"] < 500 * 12 * 0.7
        assert verify(folder).good
        # A stack that would reach into a dropped file is not returned, one that does not is.
        fast = [lake.view("fast").transitions(stack) for stack in (1, 2, 3)]
        assert fast[0] >= fast[1] >= fast[2] > 0
        ids = set(lake.sample(5_000, rng, stack=3).record["id"].tolist())
        assert ids <= set(valid) | set(naive.transitions(stack=3, n_step=1, gamma=1.0, repeat=False))
        assert lake.transitions(3) >= len(ids)


def test_new_writer_continues_after_dropped_files(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(1)
    with Lake.create(tmp_path, FRAME, max_bytes=200_000, segment_bytes=10_000) as lake:
        for _ in range(4):
            with lake.writer("a", 1) as writer:
                position = writer.position
                for _ in range(60):
                    writer.append(naive.generate("a", 1, 6, rng, FRAME, fresh=True, ends=0.1))
                assert writer.position == position + 60
        lake.refresh()
        assert lake.view("a").segments[0].number > 0
        assert verify(tmp_path).good
        with lake.writer("a", 1) as writer, pytest.raises(LakeError, match="was dropped"):
            writer.rollback(1)


def test_segments_of_an_idle_stream_are_dropped_too(tmp_path: Path) -> None:
    naive, rng = NaiveLake(), np.random.default_rng(1)
    with Lake.create(tmp_path, FRAME, max_bytes=200_000, segment_bytes=10_000) as lake:
        for name in ("idle", "busy"):
            with lake.writer(name, 1) as writer:
                for _ in range(200):
                    writer.append(naive.generate(name, 1, 6, rng, FRAME, fresh=False, ends=0.1))
        lake.refresh()
        idle, busy = (lake.view(name).num_records for name in ("idle", "busy"))
        assert 0.5 < idle / busy < 2
        assert used(tmp_path) <= 200_000


def test_max_bytes_below_eight_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="less than 8 segments"):
        Lake.create(tmp_path, FRAME, max_bytes=1_000, segment_bytes=1_000)
