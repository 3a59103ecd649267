"""A disk that fills up while a checkpoint is written."""

import json
import os
import re
import subprocess
import sys

import pytest

from millpond.store import Checkpoints
from tests.support import tiny_training


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    run = tiny_training.train(tmp_path_factory.mktemp("whole"))
    last = Checkpoints(run.checkpoints_path).load(60)
    return {name: tensor.tolist() for name, tensor in last.weights["model"].items()}


def can_mount():
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize("kind", ["tmpfs", "limit"])
def test_full_disk_is_reported_and_nothing_is_lost(tmp_path, expected, kind):
    if kind == "tmpfs" and not can_mount():
        pytest.skip("mounting a tmpfs needs root; the limit on file sizes is tested instead")
    command = [sys.executable, "-m", "tests.support.full_disk", kind, str(tmp_path)]
    if kind == "tmpfs":
        command = ["unshare", "--mount", *command]  # the mount ends with the process
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    number = re.match(r"checkpoint (\d{12}) was not written to ", seen["error"])
    assert number, seen["error"]
    assert (
        f"{tmp_path}/tiny/checkpoints: {'No space left on device' if kind == 'tmpfs' else 'File too large'}"
        in seen["error"]
    )
    assert re.search(r"It needs [\d,]+ bytes, [\d,]+ are free", seen["error"])
    assert seen["full"]["whole"] == list(range(5, int(number[1]), 5))
    assert len(seen["full"]["whole"]) >= 2
    assert seen["full"]["left_behind"] == []
    assert seen["full"]["state"] == "failed"
    assert seen["after"] == {"whole": list(range(5, 65, 5)), "left_behind": [], "state": "finished"}
    assert seen["weights"] == expected
