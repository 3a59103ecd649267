"""The trainer in docs/loop.md is run as it stands there, and prints what the page says."""

import re
import runpy
import sys
from pathlib import Path

import torch

from millpond.record import read_records
from millpond.store import Checkpoints, read_status

PAGE = (Path(__file__).parents[2] / "docs" / "loop.md").read_text()
BLOCKS = re.findall(r"```(?:python)?\n(.*?)```", PAGE, flags=re.DOTALL)


def numbers_aside(text):
    return re.sub(r"[\d.,]+", "#", re.sub(r" +|-+", " ", text))


def test_the_trainer_of_the_page_runs_resumes_and_fits_a_screen(tmp_path, monkeypatch, capsys):
    torch.set_num_threads(1)
    code = next(block for block in BLOCKS if "def train(" in block)
    body = code[code.index("    with training(") : code.index("if __name__")]
    assert body.count("\n") < 20
    assert code.count("\n") < 70
    (tmp_path / "train_sine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_sine.py"])
    runpy.run_path("train_sine.py", run_name="__main__")
    printed = capsys.readouterr().out
    shown = next(block for block in BLOCKS if "python train_sine.py" in block).split("\n", 1)[1].rsplit("...", 1)[0]
    assert numbers_aside(printed).startswith(numbers_aside(shown))
    records = list(read_records(tmp_path / "runs" / "sine" / "metrics.jsonl"))
    assert [record["updates"] for record in records] == [20, 40, 60, 80, 100, 120]
    assert abs(records[0]["R_loss"] - float(re.search(r"R_loss +\| ([\d.]+)", shown)[1])) < 1e-3
    assert Checkpoints(tmp_path / "runs" / "sine" / "checkpoints").updates() == [60, 120]

    monkeypatch.setattr(sys, "argv", ["train_sine.py", "--resume"])
    runpy.run_path("train_sine.py", run_name="__main__")  # a finished run has nothing left to do
    assert len(list(read_records(tmp_path / "runs" / "sine" / "metrics.jsonl"))) == 6
    assert read_status(tmp_path / "runs" / "sine").state == "finished"
