"""Every layout reads back exactly what was written: whole episodes and samples, from memory and from the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.data import DataError, open_episodes, refuse_unfit, unfit
from millpond.data.lake import import_episodes
from tests.support.episode_files import (
    LIBERO_IMAGES,
    LIBERO_VECTORS,
    WrittenEpisode,
    make_episodes,
    write_lake,
    write_libero,
    write_minari,
    write_npz,
    write_robomimic,
    write_robosuite,
)

Writer = Callable[[Path, list[WrittenEpisode]], None]
GZIP = {"compression": "gzip", "chunks": True}

# name -> writer, file name, True if every final frame is stored
LAYOUTS: dict[str, tuple[Callable[..., None], str, bool]] = {
    "npz": (write_npz, "a.npz", True),
    "npz compressed": (lambda path, episodes: write_npz(path, episodes, compressed=True), "a.npz", True),
    "minari": (write_minari, "data/main_data.hdf5", True),
    "robomimic": (write_robomimic, "a.hdf5", True),
    "robomimic without next_obs": (lambda p, e: write_robomimic(p, e, next_obs=False), "a.hdf5", False),
    "robomimic compressed": (lambda path, episodes: write_robomimic(path, episodes, **GZIP), "a.h5", True),
    "lake": (write_lake, "lake", False),
}
FIELDS = {
    "position": ((3,), "float64"),
    "touch": ((), "float32"),
    "count": ((2, 2), "int64"),
    "view": ((5, 4, 3), "uint8"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    chosen=st.sets(st.sampled_from(sorted(FIELDS)), min_size=1),
    discrete=st.booleans(),
    memory_bytes=st.sampled_from([0, 500, 1 << 30]),
)
@settings(max_examples=15)
def test_every_layout_reads_back_what_was_written(
    layout: str,
    seed: int,
    lengths: list[int],
    chosen: set[str],
    discrete: bool,
    memory_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    write, file_name, _ = LAYOUTS[layout]
    rng = np.random.default_rng(seed)
    episodes = make_episodes(rng, lengths, {name: FIELDS[name] for name in sorted(chosen)}, None if discrete else 2)
    path = tmp_path_factory.mktemp("written") / file_name
    write(path, episodes)
    data = open_episodes(path, sorted(chosen), images=True, memory_bytes=memory_bytes)

    assert data.lengths.tolist() == lengths
    assert data.returns is not None
    np.testing.assert_allclose(data.returns, [e.reward.sum(dtype=np.float64) for e in episodes], rtol=1e-6)
    for number, episode in enumerate(episodes):
        read = data.read(number)
        for name, array in episode.observation.items():
            np.testing.assert_array_equal(read.observation[name], array[:-1])
            assert read.observation[name].dtype == array.dtype
            if data.final_known[number]:
                assert read.final_observation is not None
                np.testing.assert_array_equal(read.final_observation[name], array[-1])
        np.testing.assert_array_equal(read.action, episode.action)
        np.testing.assert_array_equal(read.reward, episode.reward)
        np.testing.assert_array_equal(data.moments([number])[0], np.mean(expected_vector(episode)[:-1], 0, np.float64))
    sampled = rng.integers(0, len(lengths), 3)
    steps = np.stack([rng.integers(0, lengths[e], 4) for e in sampled])
    check_gather(data, episodes, sampled, steps)


def expected_vector(episode: WrittenEpisode) -> np.ndarray[Any, Any]:
    """All vectors concatenated, in order of their names."""
    parts = [array.reshape(len(array), -1) for name, array in sorted(episode.observation.items()) if name != "view"]
    return np.concatenate([*parts, np.zeros((len(episode) + 1, 0))], axis=1).astype(np.float32)


def check_gather(
    data: Any, episodes: list[WrittenEpisode], sampled: np.ndarray[Any, Any], steps: np.ndarray[Any, Any]
) -> None:
    transitions = data.gather(sampled, steps)
    for b, number in enumerate(sampled.tolist()):
        episode = episodes[number]
        last = len(episode) if data.final_known[number] else len(episode) - 1
        following = np.minimum(steps[b] + 1, last)
        observation = {name: array[b] for name, array in transitions.observation.items()}
        next_observation = {name: array[b] for name, array in transitions.next_observation.items()}
        if data.columns:
            np.testing.assert_array_equal(observation["vector"], expected_vector(episode)[steps[b]])
            np.testing.assert_array_equal(next_observation["vector"], expected_vector(episode)[following])
        if "view" in episode.observation:
            np.testing.assert_array_equal(observation["view"], episode.observation["view"][steps[b]])
            np.testing.assert_array_equal(next_observation["view"], episode.observation["view"][following])
        np.testing.assert_array_equal(transitions.action[b], episode.action[steps[b]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_final_known_is_true_exactly_where_the_final_frame_is_stored(layout: str, tmp_path: Path) -> None:
    write, file_name, stored = LAYOUTS[layout]
    episodes = make_episodes(np.random.default_rng(1), [3, 4, 2, 5], {"position": ((3,), "float32")})
    write(tmp_path / file_name, episodes)
    known = open_episodes(tmp_path / file_name).final_known.tolist()
    assert known == ([not e.terminated for e in episodes] if layout == "lake" else [stored] * 4)


def test_a_robosuite_file_has_states_and_no_rewards(tmp_path: Path) -> None:
    episodes = make_episodes(np.random.default_rng(1), [3] * 11, {"states": ((4,), "float64")})
    write_robosuite(tmp_path / "a.hdf5", episodes)
    data = open_episodes(tmp_path / "a.hdf5")
    assert data.names == tuple(f"demo_{number}" for number in range(1, 12))  # 2 before 10
    assert data.returns is None
    assert data.success is None
    assert data.sources[0].layout == "robosuite HDF5"
    np.testing.assert_array_equal(data.read(10).observation["states"], episodes[10].observation["states"][:-1])
    with pytest.raises(DataError, match="no rewards"):
        data.rewards(0)


def test_a_libero_file_is_recognised_and_read(tmp_path: Path) -> None:
    write_libero(tmp_path / "a_demo.hdf5", (6, 4))
    data = open_episodes(tmp_path / "a_demo.hdf5")
    assert data.sources[0].layout == "LIBERO HDF5"
    assert data.task_names == ("open the middle drawer of the cabinet",)
    assert set(data.fields) == set(LIBERO_VECTORS)  # neither images nor the simulator's state, unless requested
    assert len(data.columns) == 21
    assert data.returns is not None
    assert data.returns.tolist() == [1, 1]
    assert data.success is not None
    assert data.success.tolist() == [True, True]
    with_images = open_episodes(tmp_path / "a_demo.hdf5", images=True)
    assert set(with_images.images) == set(LIBERO_IMAGES)
    drawn = with_images.gather(np.array([1]), np.array([[0, 3]]))
    assert drawn.observation["agentview_rgb"].shape == (1, 2, 128, 128, 3)
    assert drawn.observation["vector"].shape == (1, 2, 21)
    states = open_episodes(tmp_path / "a_demo.hdf5", ["states", "ee_pos"])
    assert states.columns[0] == "states:0"
    assert len(states.columns) == 51 + 3


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    write_libero(tmp_path / "b.hdf5", (6, 4), side=8, instruction="push the plate")
    write_libero(tmp_path / "a.hdf5", (5,), side=8)
    (tmp_path / "readme.txt").write_text("not episodes")
    data = open_episodes(tmp_path)
    assert data.lengths.tolist() == [5, 6, 4]
    assert data.task.tolist() == [0, 1, 1]
    assert data.task_names == ("open the middle drawer of the cabinet", "push the plate")
    assert data.names[1] == f"{tmp_path / 'b.hdf5'}:demo_0"
    drawn = data.gather(np.array([2]), np.array([[3]]))
    expected = np.concatenate([data.read(2).observation[name][3] for name in data.fields])
    np.testing.assert_array_equal(drawn.observation["vector"][0, 0], expected.astype(np.float32))


def test_files_with_different_fields_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_npz(tmp_path / "a.npz", make_episodes(rng, [3], {"obs": ((3,), "float32")}))
    write_npz(tmp_path / "b.npz", make_episodes(rng, [3], {"obs": ((4,), "float32")}))
    with pytest.raises(DataError, match=r"b\.npz has obs float32\[4\] and .*a\.npz float32\[3\]; .*observation_keys"):
        open_episodes(tmp_path)


def test_columns_can_be_dropped() -> None:
    whole, less = open_episodes("lift"), open_episodes("lift", drop_columns=["states:0", "states:5"])
    assert len(less.columns) == 30
    assert not {"states:0", "states:5"} & set(less.columns)
    where, steps = np.array([0, 2]), np.array([[4, 5], [0, 391]])
    selected = [whole.columns.index(column) for column in less.columns]
    transitions, complete = less.gather(where, steps), whole.gather(where, steps)
    np.testing.assert_array_equal(transitions.observation["vector"], complete.observation["vector"][..., selected])
    np.testing.assert_array_equal(
        transitions.next_observation["vector"], complete.next_observation["vector"][..., selected]
    )
    with pytest.raises(DataError, match=r"'states:32', which is not a column .* states:0 to states:31"):
        open_episodes("lift", drop_columns=["states:32"])
    with pytest.raises(DataError, match="leaves nothing"):
        open_episodes("lift", drop_columns=[f"states:{number}" for number in range(32)])


def test_requested_fields_and_steps_must_exist(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", (3,), side=4)
    with pytest.raises(
        DataError, match=r"no field 'ee_po'; there are agentview_rgb,ee_ori,ee_pos,.*observation_keys=\[\]"
    ):
        open_episodes(tmp_path / "a.hdf5", ["ee_po"])
    with pytest.raises(DataError, match=r"agentview_rgb.* is an image .*set data.images=true"):
        open_episodes(tmp_path / "a.hdf5", ["agentview_rgb"])
    with pytest.raises(DataError, match="names a field twice"):
        open_episodes(tmp_path / "a.hdf5", ["ee_pos", "ee_pos"])
    with pytest.raises(IndexError, match="outside its episode"):
        open_episodes(tmp_path / "a.hdf5").gather(np.array([0]), np.array([[3]]))


def test_moments_are_exact_over_the_selected_episodes() -> None:
    data = open_episodes("handover")
    rows = np.concatenate([data.read(episode).observation["states"] for episode in (1, 4, 6)]).astype(np.float64)
    mean, deviation = data.moments([1, 4, 6])
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(deviation, rows.std(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "episodes", "steps"), [("pendulum", 56, 11_200), ("lift", 3, 1384), ("handover", 7, 2775)]
)
def test_packaged_datasets(name: str, episodes: int, steps: int) -> None:
    data = open_episodes(name)
    assert (len(data), data.total_steps) == (episodes, steps)


def test_small_tables_stay_in_memory_and_large_ones_in_the_file(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", (6, 4), side=16)
    data = open_episodes(tmp_path / "a.hdf5", images=True, memory_bytes=10 * 7 * 4 + 12 * 21 * 4 + 12 * 768)
    assert data.in_memory == ("action", "vector", "agentview_rgb")


def test_old_robosuite_files_have_states_alone(tmp_path: Path) -> None:
    episodes = make_episodes(np.random.default_rng(1), [3, 5], {"states": ((4,), "float64")})
    write_robosuite(tmp_path / "old.hdf5", episodes, actions=False)
    data = open_episodes(tmp_path / "old.hdf5")
    assert data.lengths.tolist() == [3, 5]
    assert data.action is None
    assert data.missing_actions == "data/demo_1/actions"
    np.testing.assert_array_equal(data.read(1).observation["states"], episodes[1].observation["states"][:-1])
    assert data.read(1).action is None
    drawn = data.gather(np.array([0, 1]), np.array([[0, 2], [1, 4]]))
    assert drawn.observation["vector"].shape == (2, 2, 4)
    assert drawn.action.shape == (2, 2, 0)
    with pytest.raises(
        DataError, match=r"old\.hdf5: data/demo_1/actions is missing; expected one action for each step"
    ):
        data.actions(0)
    reasons = unfit(data)
    assert "progress" not in reasons
    assert all("data/demo_1/actions is missing" in reasons[objective] for objective in ("lrd", "rrd"))


def test_a_demonstration_without_actions_is_still_read(tmp_path: Path) -> None:
    episodes = make_episodes(np.random.default_rng(1), [3, 5, 4], {"position": ((4,), "float64")})
    write_robomimic(tmp_path / "some.hdf5", episodes)
    with h5py.File(tmp_path / "some.hdf5", "r+") as file:
        del file["data/demo_1/actions"]
    data = open_episodes(tmp_path / "some.hdf5")
    assert data.lengths.tolist() == [3, 5, 4]
    assert data.missing_actions == "data/demo_1/actions"


def test_npz_and_minari_files_without_actions_are_read(tmp_path: Path) -> None:
    episodes = make_episodes(np.random.default_rng(2), [3, 5, 1], {"obs": ((2,), "float32")})
    write_npz(tmp_path / "whole.npz", episodes)
    with np.load(tmp_path / "whole.npz") as arrays:
        np.savez(tmp_path / "a.npz", **{name: arrays[name] for name in arrays if name != "acts"})
    write_minari(tmp_path / "main_data.hdf5", episodes)
    with h5py.File(tmp_path / "main_data.hdf5", "r+") as file:
        for episode in file.values():
            del episode["actions"]
    for path, missing in ((tmp_path / "a.npz", "the array acts"), (tmp_path / "main_data.hdf5", "episode_0/actions")):
        data = open_episodes(path)
        assert data.lengths.tolist() == [3, 5, 1]
        assert data.missing_actions == missing
        np.testing.assert_allclose(data.returns, [e.reward.sum(dtype=np.float64) for e in episodes], rtol=1e-6)
        final = data.read(1).final_observation
        assert final is not None
        np.testing.assert_array_equal(final["obs"], episodes[1].observation["obs"][-1])


def test_a_folder_in_which_one_file_has_no_actions(tmp_path: Path) -> None:
    episodes = make_episodes(np.random.default_rng(1), [3, 5], {"states": ((4,), "float64")})
    write_robosuite(tmp_path / "new.hdf5", episodes)
    write_robosuite(tmp_path / "old.hdf5", episodes, actions=False)
    data = open_episodes(tmp_path)
    assert data.lengths.tolist() == [3, 5, 3, 5]
    assert data.missing_actions == f"data/demo_1/actions of {tmp_path / 'old.hdf5'}"
    assert data.gather(np.array([0]), np.array([[0]])).action.shape == (1, 1, 0)


def test_a_lake_refuses_episodes_without_actions(tmp_path: Path) -> None:
    write_robosuite(
        tmp_path / "old.hdf5", make_episodes(np.random.default_rng(1), [3], {"states": ((4,), "f8")}), actions=False
    )
    with pytest.raises(DataError, match=r"old\.hdf5: data/demo_1/actions is missing; .*reward.objective=progress"):
        import_episodes(tmp_path / "old.hdf5", tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


def test_a_minari_file_without_rewards_or_flags(tmp_path: Path) -> None:
    write_minari(
        tmp_path / "main_data.hdf5", make_episodes(np.random.default_rng(2), [3, 5], {"obs": ((2,), "float32")})
    )
    with h5py.File(tmp_path / "main_data.hdf5", "r+") as file:
        for episode in file.values():
            del episode["rewards"], episode["truncations"]
    data = open_episodes(tmp_path / "main_data.hdf5")
    assert data.returns is None
    assert data.ends(0).terminated is not None
    assert data.ends(0).truncated is None
    assert "progress" not in unfit(data)


def test_non_finite_rewards_fit_no_objective(tmp_path: Path) -> None:
    """Training refuses them for every objective, so none is recommended."""
    episodes = make_episodes(np.random.default_rng(2), [3, 5], {"obs": ((2,), "float32")})
    episodes[1].reward[2] = np.nan
    write_npz(tmp_path / "a.npz", episodes)
    data = open_episodes(tmp_path / "a.npz")
    assert set(unfit(data)) == {"lrd", "rrd", "progress", "success"}
    with pytest.raises(
        DataError, match="the rewards of episode_1 have NaN or infinity; leave such episodes out"
    ) as error:
        refuse_unfit(data, "lrd")
    assert "reward.objective=progress" not in str(error.value)


def test_a_single_episode_is_refused_for_decomposition(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", make_episodes(np.random.default_rng(2), [9], {"obs": ((2,), "float32")}))
    with pytest.raises(DataError, match=r"lrd: there is only one episode, .*use reward.objective=progress"):
        refuse_unfit(open_episodes(tmp_path / "a.npz"), "lrd")
