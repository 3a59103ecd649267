"""Commands on files that a stranger has written or damaged: one line that names the file, never a traceback or a hang.

Runs are changed byte by byte, and field by field with valid checksums, as somebody who knows the format would do it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import millpond
from millpond.store import CheckpointError
from millpond.store.checkpoint import MANIFEST, STATE, VALUES, WEIGHTS, _seal, _sha256
from tests.support.in_process import Outcome, run_command
from tests.support.ppo_runs import SMALL

HOSTILE: tuple[Any, ...] = (float("inf"), float("nan"), -1, 10**12, 10**30, 1.5, "x\x1b[31m", [1], [], {}, None, True)
RUN_FILES = ("config.yaml", "plan.json", "host.json", "state.json", "metrics.jsonl")
CHECKPOINT_FILES = (WEIGHTS, STATE, VALUES, MANIFEST)
EVAL = ("eval", "small", "--episodes", "2", "--json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small runs `small` and `good`."""
    folder = tmp_path_factory.mktemp("strange")
    settings = {**SMALL, "trainer.total_iterations": 1, "run_dir": str(folder / "runs"), "log.tensorboard": False}
    millpond.train("grid", overrides=settings, run="small").close()
    shutil.copytree(folder / "runs" / "small", folder / "runs" / "good")
    return folder


@pytest.fixture(scope="module")
def evaluation(whole: Path) -> Any:
    outcome = run_command(whole, *EVAL)
    assert outcome.code == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.fixture
def folder(whole: Path) -> Any:
    """The folder with both runs; `small` is restored after the test."""
    yield whole
    restore(whole)


def restore(whole: Path) -> None:
    shutil.rmtree(whole / "runs" / "small")
    shutil.copytree(whole / "runs" / "good", whole / "runs" / "small")


def checkpoint_of(folder: Path) -> Path:
    (found,) = (folder / "runs" / "small" / "checkpoints").iterdir()
    return found


def seal(checkpoint: Path, **fields: Any) -> None:
    """Write a manifest with valid checksums of whatever the files contain now."""
    manifest = json.loads((checkpoint / MANIFEST).read_bytes())
    del manifest["sha256"]
    for name in (WEIGHTS, STATE, VALUES):
        data = (checkpoint / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": _sha256(data)}
    text = json.dumps({**manifest, **fields})
    (checkpoint / MANIFEST).write_bytes(_seal(json.loads(text, parse_constant=str)))


def check(outcome: Outcome, what: str) -> None:
    """Assert that a user sees a result or one line, and that nothing of a file reaches the terminal unescaped."""
    assert outcome.code in (0, 1, 2), what
    assert "Traceback" not in outcome.stderr, what
    assert "\x1b" not in outcome.stdout + outcome.stderr, what
    if outcome.code == 2:
        assert len(outcome.errors) == 1, (what, outcome.stderr)


# -- damage: some bytes of a file differ


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return bytes that differ from `data`: changed, cut, inserted, repeated, or all replaced."""
    place, length = rng.randrange(len(data)), rng.choice((1, 1, 4, 64))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        return data[:place]
    if kind == 2:
        return data[:place] + data[place + length :]
    if kind == 3:
        return data[:place] + rng.randbytes(length) + data[place:]
    if kind == 4:
        return rng.choice((b"\0" * len(data), b"", b"[" * 100_000, b"null\n", b"\xff" * 9))
    return data + data[place:] + b"x"


def damage_runs(folder: Path, evaluation: Any, rng: random.Random, cases: int) -> int:
    """Damage one file at a time and run all commands that read; return the number of commands that were refused."""
    refused = 0
    for _ in range(cases):
        name = rng.choice((*RUN_FILES, *CHECKPOINT_FILES))
        path = (checkpoint_of(folder) if name in CHECKPOINT_FILES else folder / "runs" / "small") / name
        path.write_bytes(damaged := damage(path.read_bytes(), rng))
        what = f"{name} is {damaged[:80]!r} ..."
        played, listed = run_command(folder, *EVAL), run_command(folder, "runs")
        check(played, what)
        check(listed, what)
        assert listed.code == 0, what
        assert "good" in listed.stdout, what
        assert "small" in listed.stdout, what
        if name in CHECKPOINT_FILES:
            assert played.code == 2, what
        elif name != "config.yaml":  # no checksum: another valid config is another run
            assert played.code == 0, what
            assert json.loads(played.stdout) == evaluation, what
        refused += played.code != 0
        if name in ("host.json", "plan.json") and (folder / "runs" / "small" / name).read_bytes()[:1] != b"{":
            resumed = run_command(folder, "train", "--resume", "small")
            check(resumed, what)
            assert resumed.code == 2, what
            assert name in resumed.errors[0], what
            refused += 1
        restore(folder)
    return refused


def test_damaged_run_files_are_refused_or_not_used(folder: Path, evaluation: Any) -> None:
    assert damage_runs(folder, evaluation, random.Random(0), 40) > 15


@pytest.mark.slow
def test_many_damaged_run_files_are_refused_or_not_used(folder: Path, evaluation: Any) -> None:
    assert damage_runs(folder, evaluation, random.Random(1), 1500) > 500


@pytest.mark.parametrize("name", [*RUN_FILES, *CHECKPOINT_FILES])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "hole"])
def test_only_regular_files_of_a_run_are_opened(kind: str, name: str, folder: Path, evaluation: Any) -> None:
    path = (checkpoint_of(folder) if name in CHECKPOINT_FILES else folder / "runs" / "small") / name
    path.rename(folder / "moved")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "hole":
        with path.open("wb") as file:
            file.truncate(1 << 42)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else folder / "moved")
    listed, played = run_command(folder, "runs"), run_command(folder, *EVAL)
    check(listed, name)
    check(played, name)
    assert listed.code == 0
    assert "good" in listed.stdout
    assert "small" in listed.stdout
    if name in CHECKPOINT_FILES:
        assert played.code == 2
        assert name in played.stderr
    elif name == "config.yaml":
        assert played.code == (0 if kind == "link" else 2)
    else:
        assert json.loads(played.stdout) == evaluation
        if name != "plan.json" or kind != "link":
            resumed = run_command(folder, "train", "--resume", "small")
            check(resumed, name)
            assert name in resumed.stderr or (name, kind) == ("state.json", "hole")
            assert resumed.code == (0 if kind == "hole" and name in ("state.json", "metrics.jsonl") else 2)


# -- hostility: fields differ, and the checksums are right


def fields_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all fields in a tree of JSON."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in items for found in ((*path, key), *fields_of(inner, (*path, key)))]


def with_field(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    copy = json.loads(json.dumps(value))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = new
    return copy


def change_fields(folder: Path, evaluation: Any, rng: random.Random, cases: int) -> dict[str, int]:
    """Replace one field at a time, with valid checksums; return how many commands ended with each exit code."""
    codes: dict[str, int] = {}

    def run(what: str, *arguments: str) -> Outcome:
        outcome = run_command(folder, *arguments)
        check(outcome, what)
        codes[f"{arguments[0]} {outcome.code}"] = codes.get(f"{arguments[0]} {outcome.code}", 0) + 1
        return outcome

    for _ in range(cases):
        name = rng.choice(("host.json", "plan.json", "state.json", "metrics.jsonl", VALUES, MANIFEST, "config.yaml"))
        new = rng.choice(HOSTILE)
        checkpoint, small = checkpoint_of(folder), folder / "runs" / "small"
        path = (checkpoint if name in CHECKPOINT_FILES else small) / name
        if name == "config.yaml":
            lines = path.read_text().splitlines()
            number = rng.randrange(len(lines))
            key, _, value = lines[number].partition(":")
            lines[number] = f"{key}: {json.dumps(new)}" if value else f"{key}: "
            path.write_text("\n".join(lines))
            field = lines[number]
        else:
            content = json.loads(path.read_bytes().splitlines()[0] if name == "metrics.jsonl" else path.read_bytes())
            place = rng.choice(fields_of(content))
            field = f"{place}={new!r}"
            if name == MANIFEST:
                seal(checkpoint, **{str(place[0]): with_field(content, place, new)[place[0]]})
            else:
                path.write_text(json.dumps(with_field(content, place, new)) + "\n")
                if name == VALUES:
                    seal(checkpoint)
        what = f"{name} {field}"
        listed = run(what, "runs")
        assert listed.code == 0, what
        assert "good" in listed.stdout, what
        played = run(what, *EVAL)
        if played.code == 0 and name != "config.yaml":
            assert {**json.loads(played.stdout), "checkpoint_updates": 0} == {**evaluation, "checkpoint_updates": 0}, (
                what
            )
        restore(folder)
    return codes


def test_changed_fields_of_a_run_are_refused_or_not_used(folder: Path, evaluation: Any) -> None:
    codes = change_fields(folder, evaluation, random.Random(2), 40)
    assert codes["eval 2"] >= 5
    assert codes["eval 0"] >= 5


@pytest.mark.slow
def test_many_changed_fields_of_a_run_are_refused_or_not_used(folder: Path, evaluation: Any) -> None:
    assert change_fields(folder, evaluation, random.Random(3), 1500)["eval 2"] > 100


def header(tensors: dict[str, Any], data: bytes = b"1234") -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 500_000) + b'{"a":' * 100_000,
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        header({"policy/a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}),
        header({"policy/a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}),
        header({"policy/a": {"dtype": "\x1b[31m", "shape": [1], "data_offsets": [0, 4]}}),
        header({"policy/\x1b[31m": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        header({"other/a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        header({}, b""),
    ],
)
def test_hostile_safetensors_are_refused_with_one_line(data: bytes, folder: Path) -> None:
    (checkpoint_of(folder) / WEIGHTS).write_bytes(data)
    seal(checkpoint_of(folder))
    for arguments in (EVAL, ("train", "--resume", "small")):
        outcome = run_command(folder, *arguments)
        check(outcome, repr(data[:60]))
        assert outcome.code == 2


Tensors = dict[str, torch.Tensor]


def change_weights(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = checkpoint_of(folder) / WEIGHTS
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path)
    seal(checkpoint_of(folder))


def all_nan(tensors: Tensors) -> Tensors:
    return {name: tensor * np.nan if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def one_infinite(tensors: Tensors) -> Tensors:
    name = min(name for name, tensor in tensors.items() if tensor.dim() == 2)
    tensors[name].view(-1)[-1] = np.inf
    return tensors


@pytest.mark.parametrize("change", [all_nan, one_infinite])
def test_weights_that_are_not_finite_are_refused(change: Callable[[Tensors], Tensors], folder: Path) -> None:
    change_weights(folder, change)
    message = r"checkpoint .*0000\d+: [\d,]+ of [\d,]+ values of policy/\S+ are not finite .* Use an older checkpoint"
    with pytest.raises(CheckpointError, match=message):
        millpond.load(folder / "runs" / "small")
    for arguments in (EVAL, ("train", "--resume", "small"), ("train", "grid", "--debug", "--from", "small")):
        outcome = run_command(folder, *arguments)
        check(outcome, str(arguments))
        assert outcome.code == 2
        assert "are not finite (NaN or infinity)" in outcome.errors[0]
    assert {path.name for path in (folder / "runs").iterdir()} == {"small", "good"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: {name: tensor.double() for name, tensor in tensors.items()}, "is float64, this run has"),
        (lambda tensors: {name: tensor.to(torch.int32) for name, tensor in tensors.items()}, "is int32, this run has"),
        (
            lambda tensors: {name: tensor.reshape(-1)[:1] for name, tensor in tensors.items()},
            "do not fit: .*size mismatch",
        ),
        (lambda tensors: dict(list(tensors.items())[1:]), "do not fit: .*Missing key"),
        (lambda tensors: {**tensors, "policy/\x1b[31m": torch.zeros(1)}, r"do not fit: .*Unexpected key.*\\x1b"),
    ],
)
def test_weights_of_other_dtypes_shapes_and_names_are_refused(
    change: Callable[[Tensors], Tensors], words: str, folder: Path
) -> None:
    change_weights(folder, change)
    with pytest.raises(CheckpointError, match=words if "x1b" not in words else "do not fit"):
        millpond.load(folder / "runs" / "small")
    outcome = run_command(folder, *EVAL)
    check(outcome, words)
    assert outcome.code == 2


@pytest.mark.parametrize(
    "name", ["../../../config.yaml", "/etc/hostname", "extra.bin", "", ".", "weights.safetensors/x"]
)
def test_a_manifest_names_only_the_files_of_a_checkpoint(name: str, folder: Path) -> None:
    checkpoint = checkpoint_of(folder)
    (checkpoint / "extra.bin").write_bytes(b"x")
    files = json.loads((checkpoint / MANIFEST).read_bytes())["files"]
    seal(checkpoint, files={**files, name: {"bytes": 1, "sha256": _sha256(b"x")}})
    for arguments in (EVAL, ("train", "--resume", "small")):
        outcome = run_command(folder, *arguments)
        check(outcome, name)
        assert outcome.code == 2
        assert "was not written by Millpond: it names the files" in outcome.errors[0]


# -- escape codes


def test_escape_codes_in_names_do_not_reach_the_terminal(folder: Path) -> None:
    small = folder / "runs" / "small"
    record = json.loads((small / "metrics.jsonl").read_bytes().splitlines()[-1])
    (small / "metrics.jsonl").write_text(json.dumps({**record, "\x1b[31m[red]\n": 1.0}) + "\n")
    state = json.loads((small / "state.json").read_bytes())
    (small / "state.json").write_text(json.dumps({**state, "state": "failed", "note": "\x1b]0;title\x07[bold]"}))
    evil = folder / "runs" / "\x1b[31mevil\nrow"
    shutil.copytree(small, evil)
    (evil / "host.json").write_text("\x1b[31m")
    try:
        listed = run_command(folder, "runs")
        check(listed, "runs")
        assert r"\x1b[31mevil\nrow" in listed.stdout
        assert r"\x1b]0;title\x07[bold]" in listed.stdout
        for arguments in (
            ("report", str(evil)),
            ("eval", str(evil), "--episodes", "1"),
            ("train", "--resume", evil.name),
        ):
            outcome = run_command(folder, *arguments)
            check(outcome, str(arguments))
            assert r"\x1b[31mevil\nrow" in outcome.stdout + outcome.stderr
    finally:
        shutil.rmtree(evil)
