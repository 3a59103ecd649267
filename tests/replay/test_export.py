"""Info, export and import: exported episodes import unchanged, and files of other projects can be imported."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from millpond.data import DataError, open_episodes
from millpond.data.lake import import_episodes
from millpond.replay import Field, Lake, LakeEpisode, LakeError, Schema, Steps
from millpond.replay.export import export
from millpond.replay.tools import info
from tests.support.naive_lake import FRAME, MIXED, VECTOR, NaiveLake

SCHEMAS = {"frame": FRAME, "vector": VECTOR, "mixed": MIXED}


def fields(episode: LakeEpisode) -> dict[str, np.ndarray]:
    return episode.observation if isinstance(episode.observation, dict) else {"observation": episode.observation}


@pytest.mark.parametrize("name", ["dataset", "episodes.npz"])
@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_exported_episodes_import_unchanged(tmp_path: Path, kind: str, name: str) -> None:
    schema, rng, naive = SCHEMAS[kind], np.random.default_rng(0), NaiveLake()
    with Lake.create(tmp_path / "lake", schema) as lake, lake.writer("a", 2) as writer:
        for _ in range(15):
            writer.append(naive.generate("a", 2, 6, rng, schema, fresh=False, ends=0.1))
    reported: list[int] = []
    exported = export(tmp_path / "lake", tmp_path / name, progress=reported.append)
    imported = import_episodes(tmp_path / name, tmp_path / "again")
    with Lake(tmp_path / "lake") as lake, Lake(tmp_path / "again") as again:
        before, after = list(lake.episodes()), list(again.episodes())
    assert exported.episodes == imported.episodes == len(before) == len(after) == reported[-1] > 5
    assert exported.steps == imported.steps == sum(len(episode.reward) for episode in before)
    assert exported.without_final == sum(not episode.has_final for episode in before) > 0
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.terminated, other.terminated)
        np.testing.assert_array_equal(one.truncated, other.truncated)
        for field, array in fields(one).items():
            np.testing.assert_array_equal(array, fields(other)[field])
        assert one.has_final == other.has_final
    with pytest.raises(LakeError, match="exists already"):
        export(tmp_path / "lake", tmp_path / name)


def test_minari_export_has_the_expected_groups_and_metadata(tmp_path: Path) -> None:
    schema, rng, naive = FRAME, np.random.default_rng(0), NaiveLake()
    with Lake.create(tmp_path / "lake", schema) as lake, lake.writer("a", 1) as writer:
        writer.append(naive.generate("a", 1, 40, rng, schema, fresh=False, ends=0.2))
    count = export(tmp_path / "lake", tmp_path / "set").episodes
    with h5py.File(tmp_path / "set" / "data" / "main_data.hdf5") as file:
        assert len(file) == count
        for k in range(count):
            group = file[f"episode_{k}"]
            steps = group.attrs["total_steps"]
            assert group.attrs["id"] == k
            assert len(group["observations"]) == steps + 1
            assert {len(group[n]) for n in ("actions", "rewards", "terminations", "truncations")} == {steps}
            assert bool(group["terminations"][-1]) != bool(group["truncations"][-1])


@pytest.mark.parametrize("name", ["set", "set.npz"])
def test_missing_final_observation_is_exported_as_a_flagged_repetition(tmp_path: Path, name: str) -> None:
    """The last observation is repeated and flagged; reward learning treats it as missing."""
    rng, naive = np.random.default_rng(0), NaiveLake()
    with Lake.create(tmp_path / "lake", VECTOR) as lake, lake.writer("a", 1) as writer:
        writer.append(naive.generate("a", 1, 60, rng, VECTOR, fresh=False, ends=0.2))
    missing = export(tmp_path / "lake", tmp_path / name).without_final
    with Lake(tmp_path / "lake") as lake:
        known = [episode.has_final for episode in lake.episodes()]
    assert missing == known.count(False) > 0
    assert True in known
    read = open_episodes(str(tmp_path / name / "data" / "main_data.hdf5" if name == "set" else tmp_path / name))
    assert read.final_known.tolist() == known
    for number, final in enumerate(known):
        assert (read.read(number).final_observation is not None) == final
    written = export_observations(tmp_path / name)
    for observation, final in zip(written, known, strict=True):
        assert np.array_equal(observation[-1], observation[-2]) == (not final)


def export_observations(path: Path) -> list[np.ndarray]:
    """Read observations as other programs would."""
    if path.suffix == ".npz":
        file = np.load(path)
        cuts = file["indices"] + np.arange(1, len(file["indices"]) + 1)
        return np.split(file["obs"], cuts)
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        return [file[f"episode_{k}/observations"][()] for k in range(len(file))]


def test_robomimic_files_are_imported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "demos.hdf5"
    with h5py.File(path, "w") as file:
        for k, steps in enumerate((5, 7, 12)):
            group = file.create_group(f"data/demo_{k}")
            group["obs/image"] = rng.integers(0, 255, (steps, 16, 16, 3), np.uint8)
            group["obs/joints"] = rng.random((steps, 4))
            group["actions"], group["states"] = rng.random((steps, 7)), rng.random((steps, 20))
            if k != 1:
                group["rewards"], group["dones"] = np.eye(steps)[-1], np.eye(steps, dtype=np.uint8)[-1]
    imported = import_episodes(path, tmp_path / "lake")
    assert (imported.episodes, imported.steps) == (3, 5 + 6 + 12)
    assert len(imported.notes) == 2
    with Lake(tmp_path / "lake") as lake, h5py.File(path) as file:
        episodes = list(lake.episodes())
        assert [episode.episode_return for episode in episodes] == [1.0, 0.0, 1.0]
        assert [bool(episode.truncated[-1]) for episode in episodes] == [False, True, False]
        for k, episode in enumerate(episodes):
            np.testing.assert_array_equal(episode.observation["image"], file[f"data/demo_{k}/obs/image"])
            np.testing.assert_array_equal(episode.action, file[f"data/demo_{k}/actions"][: len(episode.action)])
        storage = {field.name: field.storage for field in lake.schema.observation}
        assert storage == {"image": "lz4", "joints": "fixed"}


def test_every_readable_source_can_be_imported(tmp_path: Path) -> None:
    """Packaged data, a folder of files, and another lake."""
    assert import_episodes("pendulum", tmp_path / "one").steps == 11_200
    again = import_episodes(tmp_path / "one", tmp_path / "two")
    assert (again.episodes, again.steps, again.notes) == (56, 11_200, [])
    with Lake(tmp_path / "one") as one, Lake(tmp_path / "two") as two:
        assert one.schema == two.schema
        for episode, other in zip(one.episodes(), two.episodes(), strict=True):
            np.testing.assert_array_equal(episode.observation, other.observation)
            np.testing.assert_array_equal(episode.reward, other.reward)
    (tmp_path / "files").mkdir()
    for name, width in (("a", 2), ("b", 2), ("c", 3)):
        with h5py.File(tmp_path / "files" / f"{name}.hdf5", "w") as file:
            file["data/demo_0/actions"], file["data/demo_0/states"] = np.zeros((4, 1)), np.ones((4, width))
    with pytest.raises(DataError, match=r"c\.hdf5 has states"):
        import_episodes(tmp_path / "files", tmp_path / "three")
    (tmp_path / "files" / "c.hdf5").unlink()
    files = import_episodes(tmp_path / "files", tmp_path / "three")
    assert (files.episodes, files.steps) == (2, 6)


def test_unreadable_files_are_refused_with_the_expected_layout(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["something"] = 1
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "text.hdf5").write_text("not hdf5")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("other.hdf5", "expected the group data"),
        ("other.npz", "expected the imitation layout"),
        ("text.hdf5", "expected a complete HDF5 file"),
        ("folder", "no episodes in this folder"),
        ("nothing.npz", "no such file"),
    ):
        with pytest.raises(DataError, match=message):
            import_episodes(tmp_path / name, tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


def test_info_counts_transitions_episodes_and_returns(tmp_path: Path) -> None:
    schema = Schema((Field.of("observation", (20, 20), "uint8"),), Field("action", (), "int32"))
    with Lake.create(tmp_path, schema, segment_bytes=2_000) as lake:
        for name, rounds in (("agent0", (0, 1)), ("agent1", (1,))):
            with lake.writer(name, 2) as writer:
                for number in rounds:
                    for _ in range(5):  # lane 0: episodes of 4 steps and return 4; lane 1: one that never ends
                        terminated = np.zeros((4, 2), bool)
                        terminated[3, 0] = True
                        writer.append(
                            Steps(
                                np.zeros((4, 2, 20, 20), np.uint8),
                                np.zeros((4, 2), int),
                                np.full((4, 2), 1 + number),
                                terminated,
                                np.zeros((4, 2), bool),
                                round=number,
                            )
                        )
    result = info(tmp_path)
    assert [stream.name for stream in result.streams] == ["agent0", "agent1"]
    first, second = result.streams
    assert (first.transitions, first.episodes, first.commits, first.rows) == (79, 10, 10, 80)
    assert (second.transitions, second.episodes) == (39, 5)
    assert [(r.round, r.episodes, r.mean, r.mean_length) for r in first.returns] == [(0, 5, 4, 4), (1, 5, 8, 4)]
    assert [r.histogram for r in first.returns] == [[5] + [0] * 15, [0] * 15 + [5]]
    assert first.raw_bytes == 80 * schema.raw_record_bytes
    assert result.transitions == 118
    on_disk = sum(path.stat().st_size for path in (tmp_path / "streams").rglob("*") if path.is_file())
    assert result.stored_bytes == on_disk
    text = "\n".join(result.lines())
    assert "round 1: 5 episodes, return 8.0 (8.0 to 8.0), 4.0 steps |               █|" in text
    assert result.to_json()["transitions"] == 118
