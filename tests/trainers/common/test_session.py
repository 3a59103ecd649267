"""Start of a run: optimizers work without torch's compiler, whose import takes most of a second."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._compile

PROGRAM = """
import sys
import millpond
millpond.train("grid", overrides={overrides!r}, run="pond")
print("torch._dynamo" in sys.modules)
"""
SMALL = ["trainer.num_envs=8", "trainer.batch_size=512", "trainer.minibatch_size=256", "trainer.total_iterations=1"]


@pytest.mark.skipif(
    "__dynamo_disable" not in inspect.getsource(torch._compile), reason="this torch imports its compiler in another way"
)
def test_training_and_saving_do_not_import_the_compiler(tmp_path: Path) -> None:
    overrides = [*SMALL, f"run_dir={tmp_path}", "eval.episodes=1", "log.tensorboard=false"]
    program = PROGRAM.format(overrides=overrides)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    assert list((tmp_path / "pond" / "checkpoints").iterdir())
