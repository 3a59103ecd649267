"""The real command under the real torchrun: totals, one writer, exact resume, and a rank that is killed."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from millpond.cli.app import app
from millpond.store import Checkpoints, ResumeError, read_status
from millpond.trainers.common.session import resume_run
from tests.support.rank_processes import run_torchrun, start_and_signal

ITERATIONS = 24
SETTINGS = {
    "trainer.num_workers": 2,
    "trainer.num_envs": 8,
    "trainer.bptt_horizon": 8,
    "trainer.batch_unit": "agent_steps",
    "trainer.batch_size": 8 * 28,  # 14 rows per rank: one round of 12, then one env adds 3, of which 1 is surplus
    "trainer.minibatch_size": 8 * 14,
    "trainer.update_epochs": 2,
    "trainer.total_iterations": ITERATIONS,
    "policy.hidden_size": 16,
    "env.max_steps": 20,
    "eval.episodes": 2,
    "eval.interval": 10,
    "checkpoint.interval": 1,
    "log.tensorboard": "false",
    "log.console_seconds": 0.01,
}


def arguments(name: str) -> list[str]:
    return ["grid", *(f"{key}={value}" for key, value in SETTINGS.items()), "--run", name]


def records(folder: Path) -> list[dict[str, float]]:
    """Return the metrics without times."""
    timed = ("seconds", "agent_steps_per_second")
    return [
        {k: v for k, v in json.loads(line).items() if k not in timed and not k.startswith("time/")}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoints = Checkpoints(folder / "checkpoints")
    return load_file(checkpoints.path(checkpoints.updates()[-1]) / "weights.safetensors")


def test_torchrun_accepts_every_printed_command() -> None:
    root = Path(__file__).parents[2]
    texts = [path.read_text() for path in (root / "README.md", *sorted((root / "docs").glob("*.md")))]
    texts.append(CliRunner().invoke(app, ["train", "--help"]).output)
    shown = [line for text in texts for line in re.findall(r"torchrun (-.*millpond train[^`#\\\n]*)", text)]
    assert any("--run" in command for command in shown)
    for command in shown:
        arguments = get_args_parser().parse_args(shlex.split(command.partition(". ")[0]))
        assert (arguments.module, arguments.training_script) == (True, "millpond"), command
        assert arguments.training_script_args[0] == "train", command


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    run = run_torchrun(root, 2, *arguments("uncut"))
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("run runs/uncut\n") == 1
    assert run.stdout.count(f"\niteration {ITERATIONS - 1}/") <= 1
    assert "torchrun --nproc-per-node=2 -m -- millpond train --resume uncut" in run.stdout
    return root / "runs" / "uncut"


def test_two_ranks_follow_the_plan(uncut: Path) -> None:
    plan, found = json.loads((uncut / "plan.json").read_text()), records(uncut)
    assert plan["ranks"] == 2
    assert (plan["num_envs"], plan["segments"], plan["minibatch_segments"]) == (8, 28, 14)
    assert len(found) == plan["iterations"] == ITERATIONS  # one writer
    assert found[-1]["updates"] == plan["total_gradient_updates"] == 2 * 2 * ITERATIONS
    assert found[-1]["env_steps"] == plan["total_env_steps"]
    assert found[-1]["agent_steps"] == 3 * plan["total_env_steps"]
    assert found[0]["env_steps"] == plan["env_steps"] == 2 * (4 + 1) * 8  # each rank tops up with one env
    episodes = sum(record["env_steps"] for record in found[-1:]) / SETTINGS["env.max_steps"]  # type: ignore[operator]
    assert found[-1]["episodes"] == pytest.approx(episodes, rel=0.25)  # of both ranks
    evaluated = [index for index, record in enumerate(found) if "eval/episode_return" in record]
    assert evaluated == [9, 19, 23]
    assert read_status(uncut).state == "finished"


def test_resume_with_another_number_of_ranks_is_refused(uncut: Path) -> None:
    with pytest.raises(ResumeError, match="run 'uncut' was written by 2 ranks, and this run has 1 rank") as refused:
        resume_run("uncut", [], str(uncut.parent))
    assert "Resume with: torchrun --nproc-per-node=2 -m -- millpond train --resume uncut" in str(refused.value)
    assert "--from uncut" in str(refused.value)
    assert read_status(uncut).state == "finished"


def resume_and_compare(root: Path, name: str, uncut: Path) -> None:
    assert len(records(root / "runs" / name)) < ITERATIONS
    resumed = run_torchrun(root, 2, "--resume", name)
    assert resumed.returncode == 0, resumed.stderr
    assert records(root / "runs" / name) == records(uncut)
    for key, tensor in weights(uncut).items():
        assert torch.equal(weights(root / "runs" / name)[key], tensor), key


def test_run_ends_when_a_rank_is_killed_and_resumes_exactly(uncut: Path, tmp_path: Path) -> None:
    code, _, errors, killed = start_and_signal(tmp_path, "cut", arguments("cut"), 1, signal.SIGKILL)
    assert code == 1
    said = [line for line in errors.splitlines() if line.startswith("millpond: ")]
    assert len(said) == 1, errors
    newest = Checkpoints(tmp_path / "runs" / "cut" / "checkpoints").updates()[-1]
    assert said[0] == (
        f"millpond: rank 1 (process {killed}) died, and training cannot continue without it. The newest checkpoint is "
        f"after {newest} updates; resume with: torchrun --nproc-per-node=2 -m -- millpond train --resume cut"
    )
    status = read_status(tmp_path / "runs" / "cut")
    assert status.state == "failed"
    assert f"rank 1 (process {killed}) died" in status.note
    resume_and_compare(tmp_path, "cut", uncut)


@pytest.mark.slow
def test_last_rank_alive_reports_that_rank_0_died(uncut: Path, tmp_path: Path) -> None:
    code, _, errors, killed = start_and_signal(tmp_path, "cut", arguments("cut"), 0, signal.SIGKILL)
    assert code == 1
    assert f"millpond: rank 1: rank 0 (process {killed}) died" in errors
    resume_and_compare(tmp_path, "cut", uncut)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "number"), [(None, signal.SIGINT), (1, signal.SIGTERM), (None, signal.SIGKILL)])
def test_signal_stops_all_ranks_after_the_same_iteration(
    uncut: Path, tmp_path: Path, rank: int | None, number: signal.Signals
) -> None:
    """Ctrl-C reaches torchrun, which forwards it; SIGTERM may reach any process; ranks get SIGTERM if torchrun dies."""
    _, output, errors, _ = start_and_signal(tmp_path, "cut", arguments("cut"), rank, number)
    heard = "SIGINT" if number == signal.SIGINT else "SIGTERM"
    assert f"stopped ({heard}) before iteration" in output, errors
    assert "resume with: torchrun --nproc-per-node=2 -m -- millpond train --resume cut" in output
    assert read_status(tmp_path / "runs" / "cut").state == "stopped"
    resume_and_compare(tmp_path, "cut", uncut)


@pytest.mark.slow
def test_error_is_printed_once(uncut: Path, tmp_path: Path) -> None:
    refused = run_torchrun(tmp_path, 2, "grid", "--debug")
    assert refused.returncode != 0
    words = "trainer.num_workers=1 is a total that 2 ranks cannot share equally; try trainer.num_workers=2"
    assert refused.stderr.count(words) == 1
    assert not (tmp_path / "runs").exists()
    exists = run_torchrun(uncut.parent.parent, 2, *arguments("uncut"))
    assert exists.stderr.count("already exists") == 1
    weights_of_two = run_torchrun(uncut.parent.parent, 2, *arguments("next"), "--from", "uncut", "--overwrite")
    assert weights_of_two.returncode == 0, weights_of_two.stderr
