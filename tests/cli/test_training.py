"""The commands around a run: train, resume, start from another's weights, evaluate, list."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.in_process import run_command


def millpond(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "millpond", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    run = millpond(folder, "train", "grid", "--debug", "--run", "first")
    assert run.returncode == 0, run.stderr
    for words in (
        "(learned - random) / (greedy - random)",
        "agent steps per second",
        "millpond eval first",
        "Run folder: runs/first",
    ):
        assert words in run.stdout
    return folder


def test_files_of_the_run_folder(trained: Path) -> None:
    folder = trained / "runs" / "first"
    assert {"config.yaml", "plan.json", "host.json", "metrics.jsonl", "tensorboard", "checkpoints"} <= {
        path.name for path in folder.iterdir()
    }
    assert json.loads((folder / "host.json").read_text())["command"][1:4] == ["train", "grid", "--debug"]
    assert millpond(trained, "plan", "runs/first/config.yaml").returncode == 0


def test_runs_are_listed(trained: Path) -> None:
    run = millpond(trained, "runs")
    assert "first" in run.stdout
    assert "finished" in run.stdout
    rows = json.loads(millpond(trained, "runs", "--json").stdout)
    assert {"name": "first", "state": "finished"}.items() <= next(row for row in rows if row["name"] == "first").items()
    assert "no runs yet" in millpond(trained, "runs", "--run-dir", "elsewhere").stdout


def test_existing_run_is_refused_with_the_alternatives(trained: Path) -> None:
    run = millpond(trained, "train", "grid", "--debug", "--run", "first")
    assert run.returncode == 2
    for choice in ("--resume first", "--run NAME", "--overwrite"):
        assert choice in run.stderr


def test_runs_without_a_name_are_numbered(trained: Path) -> None:
    for number in (1, 2):
        assert f"runs/grid-{number}" in millpond(trained, "train", "grid", "--debug").stdout


def test_resume_refuses_changed_settings(trained: Path) -> None:
    run = millpond(
        trained, "train", "--resume", "first", "ppo.gamma=0.5", "policy.hidden_size=32", "trainer.total_iterations=2"
    )
    assert run.returncode == 2
    assert "ppo.gamma: " in run.stderr
    assert "policy.hidden_size: " in run.stderr
    assert "trainer.total_iterations: " not in run.stderr
    for wrong in (["--resume", "first", "--overwrite"], ["metta", "--resume", "first"], ["--resume", "nothing"]):
        assert millpond(trained, "train", *wrong).returncode == 2


def test_eval_and_render(trained: Path) -> None:
    run = millpond(trained, "eval", "first", "--episodes", "3", "--render", "first.gif", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["episodes"] == 3
    assert len(found["returns"]) == 3
    assert len(found["returns"][0]) == 3  # one an agent
    assert (trained / "first.gif").read_bytes().startswith(b"GIF89a")
    again = json.loads(millpond(trained, "eval", "first", "--episodes", "3", "--json").stdout)
    assert again["returns"] == found["returns"]
    other = json.loads(millpond(trained, "eval", "first", "--episodes", "3", "--seed", "5", "--json").stdout)
    assert other["returns"] != found["returns"]
    assert "95% interval" in millpond(trained, "eval", "first", "--best", "--episodes", "2").stdout
    assert millpond(trained, "eval", "nothing").returncode == 2
    shorter = millpond(trained, "eval", "first", "env.max_steps=3", "--episodes", "2", "--deterministic")
    assert re.search(r"actions +deterministic +as requested", shorter.stdout), shorter.stdout
    assert re.search(r"length +3\.0", shorter.stdout), shorter.stdout
    refused = millpond(trained, "eval", "first", "ppo.gamma=0.5")
    assert (refused.returncode, "ppo.gamma cannot change in an evaluation" in refused.stderr) == (2, True)


def test_train_from_the_weights_of_another_run(trained: Path) -> None:
    run = millpond(trained, "train", "grid", "--debug", "--run", "second", "--from", "first")
    assert run.returncode == 0, run.stderr
    wrong = millpond(trained, "train", "grid", "--debug", "--run", "third", "--from", "first", "policy.hidden_size=32")
    assert wrong.returncode == 2
    assert "do not fit" in wrong.stderr
    own = millpond(trained, "train", "grid", "--debug", "--run", "second", "--overwrite", "--from", "second")
    assert own.returncode == 2
    assert "cannot start with its own weights" in own.stderr
    assert (trained / "runs" / "second" / "checkpoints").is_dir()


def test_run_with_other_weights_that_never_saved_starts_with_them_again(trained: Path) -> None:
    def weights(run: str) -> bytes:
        (saved,) = (trained / "runs" / run / "checkpoints").iterdir()
        return (saved / "weights.safetensors").read_bytes()

    millpond(trained, "train", "grid", "--debug", "--run", "source", "seed=5")
    assert millpond(trained, "train", "grid", "--debug", "--run", "heir", "--from", "source").returncode == 0
    expected, folder = weights("heir"), trained / "runs" / "heir"
    state = json.loads((folder / "state.json").read_text())

    def forget_checkpoints() -> None:
        shutil.rmtree(folder / "checkpoints")
        (folder / "state.json").write_text(json.dumps({**state, "checkpoint": None}))

    forget_checkpoints()
    again = millpond(trained, "train", "--resume", "heir")
    assert again.returncode == 0, again.stderr
    assert "it starts again with the weights of source" in " ".join(again.stdout.split())
    assert weights("heir") == expected
    forget_checkpoints()
    shutil.rmtree(trained / "runs" / "source")
    refused = millpond(trained, "train", "--resume", "heir")
    assert refused.returncode == 2
    assert "and that checkpoint is gone; start the run again, with --overwrite and --from RUN" in refused.stderr


@pytest.mark.parametrize("recipe", ["grid", "metta", "puffer-metta"])
def test_debug_runs_one_of_every_level(trained: Path, recipe: str) -> None:
    run = millpond(trained, "train", recipe, "--debug", "--run", f"debug-{recipe}")
    assert run.returncode == 0, run.stderr
    records = (trained / "runs" / f"debug-{recipe}" / "metrics.jsonl").read_text().splitlines()
    assert len(records) == 1
    assert json.loads(records[0])["updates"] == 1


def test_unfit_objective_is_refused_before_a_folder_is_created(trained: Path) -> None:
    lift = ["data.path=lift", "data.expected_episodes=null", "data.expected_steps=null"]
    run = millpond(trained, "train", "reward", *lift, "--run", "refused")
    assert run.returncode == 2
    assert "objective=progress" in run.stderr
    assert not (trained / "runs" / "refused").exists()


def test_ctrl_c_finishes_the_iteration_saves_and_prints_how_to_resume(trained: Path) -> None:
    settings = ["trainer.total_iterations=1000000", "trainer.total_timesteps=1e12", "log.console_seconds=0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", "train", "grid", "--debug", "--run", "long", *settings],
        cwd=trained, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = trained / "runs" / "long" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "resume with: millpond train --resume long" in output
    updates = json.loads(metrics.read_text().splitlines()[-1])["updates"]
    assert (trained / "runs" / "long" / "checkpoints" / f"{updates:012d}").is_dir()
    done = millpond(trained, "train", "--resume", "long", f"trainer.total_iterations={int(updates) + 2}")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["updates"] for line in metrics.read_text().splitlines()] == list(
        range(1, int(updates) + 3)
    )


def test_run_in_training_is_neither_resumed_nor_overwritten_and_a_killed_one_resumes(tmp_path: Path) -> None:
    """Debug runs with worker processes, which must not hold the lock of a trainer that was killed."""
    settings = ["vector.backend=processes", "trainer.num_workers=2", "checkpoint.interval=1", "log.tensorboard=false"]
    command = ["train", "grid", "--debug", "--run", "one", *settings]
    trainer = subprocess.Popen(
        [sys.executable, "-m", "millpond", *command, "trainer.total_iterations=1_000_000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    folder = tmp_path / "runs" / "one"
    try:
        while not list(folder.glob("checkpoints/0*")):
            assert trainer.poll() is None
            time.sleep(0.05)
        facts = [(folder / name).read_bytes() for name in ("host.json", "config.yaml", "lock")]
        for arguments, verb in (
            (["train", "--resume", "one", "log.console_seconds=3"], "resumed"),
            ([*command, "--overwrite"], "overwritten"),
        ):
            refused = millpond(tmp_path, *arguments)
            assert refused.returncode == 2
            (line,) = refused.stderr.splitlines()
            assert line.startswith(f"millpond: run 'one' is running (process {trainer.pid} on ")
            assert line.endswith(f" and cannot be {verb}; stop it first, or wait for its end")
        assert facts == [(folder / name).read_bytes() for name in ("host.json", "config.yaml", "lock")]
        assert [path.name for path in folder.parent.iterdir()] == ["one"]
        assert trainer.poll() is None
    finally:
        trainer.kill()
        trainer.wait()
    resumed = millpond(tmp_path, "train", "--resume", "one", "trainer.max_seconds=1")
    assert resumed.returncode == 0, resumed.stderr
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    assert "starts again" not in resumed.stdout

    shutil.rmtree(folder / "checkpoints")
    lost = millpond(tmp_path, "train", "--resume", "one")
    assert lost.returncode == 2
    (line,) = lost.stderr.splitlines()
    assert line.startswith("millpond: run 'one' has lost its checkpoints: 0")
    state = json.loads((folder / "state.json").read_text())
    del state["checkpoint"]  # as if it had never saved
    (folder / "state.json").write_text(json.dumps(state))
    again = millpond(tmp_path, "train", "--resume", "one", "trainer.max_seconds=1")
    assert again.returncode == 0, again.stderr
    assert "run one ended before it saved a checkpoint: it starts again from the beginning" in " ".join(
        again.stdout.split()
    )


@pytest.mark.parametrize(
    ("recipe", "near"),
    [("gymnasium:CartPole-v9", "gymnasium:CartPole-v1"), ("grdd", "grid"), ("minatar:breakot", "breakout")],
)
def test_mistyped_ids_and_recipes_list_near_matches_and_exit_with_2(tmp_path: Path, recipe: str, near: str) -> None:
    outcome = run_command(tmp_path, "train", recipe)
    assert outcome.code == 2
    assert near in outcome.errors[0]
    assert not (tmp_path / "runs").exists()
