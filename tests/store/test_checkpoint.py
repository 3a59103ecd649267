import json
import os
import pickle
import shutil
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.store import (
    Checkpoint,
    CheckpointError,
    DamagedCheckpointError,
    UnsafeCheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from millpond.store.checkpoint import MANIFEST, STATE, _seal, _sha256, read_manifest, recover


def example(updates=7, scale=1.0):
    return Checkpoint(
        updates=updates,
        weights={
            "policy": {"layer.weight": torch.arange(6.0).reshape(2, 3) * scale},
            "target": {"bias": torch.ones(1)},
        },
        state={
            "optimizer": {"step": torch.tensor(3), 0: {"moment": torch.full((2,), 0.5)}},
            "cursor": [1, (2, 3.5), None],
        },
        values={"loop": {"indices": [0, 1, 2]}, "name": "pond"},
        score=1.5,
        best=(5, 2.5),
    )


def test_checkpoint_round_trip(tmp_path):
    write_checkpoint(tmp_path / "000000000007", example())
    found = read_checkpoint(tmp_path / "000000000007")
    assert torch.equal(found.weights["policy"]["layer.weight"], torch.arange(6.0).reshape(2, 3))
    assert found.state["cursor"] == [1, (2, 3.5), None]
    assert torch.equal(found.state["optimizer"][0]["moment"], torch.full((2,), 0.5))
    assert (found.values, found.updates, found.score, found.best) == (example().values, 7, 1.5, (5, 2.5))
    assert [path.name for path in tmp_path.iterdir()] == ["000000000007"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "000000000007"
    write_checkpoint(folder, example())
    return folder


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damaged_byte_is_detected(whole, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged") / whole.name
    shutil.copytree(whole, folder)
    path = folder / data.draw(st.sampled_from(sorted(path.name for path in whole.iterdir())))
    before = path.read_bytes()
    start = data.draw(st.integers(0, len(before) - 1))
    stop = data.draw(st.integers(start, min(len(before), start + 64)))
    replacement = data.draw(st.one_of(st.binary(max_size=64), st.just(bytes(stop - start))))
    after = before[:start] + replacement + before[stop:]
    path.write_bytes(after)
    if after == before:
        read_checkpoint(folder)
    else:
        with pytest.raises(DamagedCheckpointError, match=path.name):
            read_checkpoint(folder)
    shutil.rmtree(folder)


def test_any_damaged_byte_of_the_manifest_is_detected(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "c")
    path = tmp_path / "c" / MANIFEST
    before = path.read_bytes()
    for position in range(len(before)):
        path.write_bytes(before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :])
        with pytest.raises(DamagedCheckpointError, match="is not as it was written"):
            read_manifest(tmp_path / "c")


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "values.json", "manifest.json"])
def test_missing_file_is_named(tmp_path, name):
    write_checkpoint(tmp_path / "c", example())
    (tmp_path / "c" / name).unlink()
    with pytest.raises(DamagedCheckpointError, match=f"{name} cannot be read: No such file"):
        read_checkpoint(tmp_path / "c")


class Stranger:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("stranger-was-here",))


def test_unsafe_pickle_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "c", example())
    torch.save({"optimizer": Stranger()}, tmp_path / "c" / STATE)
    data = (tmp_path / "c" / STATE).read_bytes()
    manifest = json.loads((tmp_path / "c" / MANIFEST).read_bytes())  # an attacker can compute checksums, too
    del manifest["sha256"]
    manifest["files"][STATE] = {"bytes": len(data), "sha256": _sha256(data)}
    (tmp_path / "c" / MANIFEST).write_bytes(_seal(manifest))
    with pytest.raises(UnsafeCheckpointError, match=r"state\.pt is refused: .* loading it could run code"):
        read_checkpoint(tmp_path / "c")
    assert not (tmp_path / "stranger-was-here").exists()
    with pytest.raises(FileExistsError):  # the same file runs code if it is loaded without weights_only
        (tmp_path / "stranger-was-here").mkdir() or torch.load(tmp_path / "c" / STATE, weights_only=False)
    assert isinstance(pickle.dumps(Stranger()), bytes)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"sampler": {"rng": np.random.default_rng()}}, r"state\['sampler'\]\['rng'\] is a numpy\.random\._generator"),
        ({"rows": [1, {2, 3}]}, r"state\['rows'\]\[1\] is a builtins\.set"),
        ({"names": np.array(["a", None])}, r"state\['names'\] is an array of dtype object"),
        ({"map": {(1, 2): 3}}, r"state\['map'\] has the key \(1, 2\)"),
    ],
)
def test_state_that_needs_pickle_is_refused_when_saved(tmp_path, state, message):
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c", Checkpoint(0, state=state))
    assert list(tmp_path.iterdir()) == []


def test_invalid_values_and_weights_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="finite numbers"):
        write_checkpoint(tmp_path / "c", Checkpoint(0, values={"loss": float("nan")}))
    with pytest.raises(CheckpointError, match="not a tensor"):
        write_checkpoint(tmp_path / "c", Checkpoint(0, weights={"policy": {"extra": 3}}))
    with pytest.raises(CheckpointError, match="must not contain '/'"):
        write_checkpoint(tmp_path / "c", Checkpoint(0, weights={"a/b": {}}))


def test_arrays_keep_dtype_and_shape(tmp_path):
    arrays = {
        "keys": np.arange(5, dtype=np.uint32),
        "big": np.array([2**64 - 1], dtype=np.uint64),
        "empty": np.zeros((0, 3), dtype=np.int16),
        "flag": np.array(True),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    state = {**arrays, "scalar": np.float32(0.1), "long": 2**127 + 1, "bytes": b"\x00\xff", "ordered": OrderedDict(a=1)}
    write_checkpoint(tmp_path / "c", Checkpoint(0, state=state))
    found = read_checkpoint(tmp_path / "c").state
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable
    assert found["scalar"] == np.float32(0.1)
    assert isinstance(found["scalar"], np.float32)
    assert (found["long"], found["bytes"], found["ordered"]) == (2**127 + 1, b"\x00\xff", {"a": 1})


def test_view_is_stored_without_its_base(tmp_path):
    base = torch.zeros(1_000_000)
    write_checkpoint(tmp_path / "c", Checkpoint(0, state={"row": base[3:5]}, weights={"m": {"w": base[7:9]}}))
    assert sum(path.stat().st_size for path in (tmp_path / "c").iterdir()) < 10_000


def test_tied_weights_are_stored_under_each_name(tmp_path):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    write_checkpoint(tmp_path / "c", Checkpoint(0, weights={"model": model.state_dict()}))
    saved = model["a"].weight.detach().clone()
    with torch.no_grad():
        model["a"].weight.zero_()
    model.load_state_dict(read_checkpoint(tmp_path / "c").weights["model"])
    assert torch.equal(model["b"].weight, saved)


class Cut(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_replaced_checkpoint_exists_at_every_moment(tmp_path, monkeypatch, renames):
    folder = tmp_path / "000000000007"
    write_checkpoint(folder, example(scale=1.0))
    rename, left = os.rename, [renames]

    def cut(source, target):
        if left[0] == 0:
            raise Cut
        left[0] -= 1
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", cut)
        if renames < 3:
            with pytest.raises(Cut):
                write_checkpoint(folder, example(scale=2.0))
        else:
            write_checkpoint(folder, example(scale=2.0))
    recover(tmp_path)
    scale = read_checkpoint(folder).weights["policy"]["layer.weight"][0, 1].item()
    assert scale == (2.0 if renames >= 2 else 1.0)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
