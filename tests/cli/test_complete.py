"""Shell completion, asked as the shells ask."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond.cli.complete import complete_state, env_choices, override_choices, recipe_choices


def complete(*words: str, cwd: Path, shell: str = "bash") -> list[str]:
    """Return the completions of the last word."""
    line = {"bash": {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}}
    line["zsh"] = {"_TYPER_COMPLETE_ARGS": " ".join(words)}
    environment = {**os.environ, **line[shell], "_MILLPOND_COMPLETE": f"complete_{shell}"}
    asked = subprocess.run(
        [sys.executable, "-m", "millpond"], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("creek", "river"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "host.json").write_text("{}")
    (tmp_path / "runs" / "creek" / "metrics.jsonl").write_text('{"entropy": 1.0, "updates": 3}\n')
    return tmp_path


def test_bash_completes_runs_and_recipes(folder: Path) -> None:
    assert complete("millpond", "eval", "cr", cwd=folder) == ["creek"]
    assert complete("millpond", "plan", "met", cwd=folder)[:3] == ["metta", "metta-2026", "mettagrid"]
    assert complete("millpond", "train", "--resume", "r", cwd=folder) == ["river"]
    assert complete("millpond", "plan", "mixture", "pqn.lear", cwd=folder)[0] == "pqn.learning_rate="
    assert complete("millpond", "train", "gymnasium", ":", "CartP", cwd=folder) == ["CartPole-v0", "CartPole-v1"]


# After each line and TAB, Ctrl-P prints the line as Bash has it now.
SHOW_LINE = """bind -x '"\\C-p": echo "LINE=[$READLINE_LINE]"'"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs Bash")
def test_tab_completes_in_a_bash_with_the_script_that_show_completion_prints(folder: Path) -> None:
    ours, theirs = pty.openpty()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "PATH": path, "TERM": "dumb", "INPUTRC": "/dev/null"},
        start_new_session=True,
    )
    os.close(theirs)

    def type_until(typed: str, marker: str) -> str:
        os.write(ours, typed.encode())
        shown, end = b"", time.monotonic() + 120
        while marker.encode() not in shown and time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 65536)
        return shown.decode(errors="replace")

    try:
        type_until(f"source <(millpond --show-completion); {SHOW_LINE}; echo rea''dy\n", "ready")
        for typed, line in (
            ("pl", "plan "),
            ("plan metta ppo.gam", "plan metta ppo.gamma="),
            ("eval cr", "eval creek "),
            ("train gymnasium:CartP", "train gymnasium:CartPole-v"),
        ):
            shown = type_until(f"\x15millpond {typed}\t\x10", "LINE=[millpond")
            shown += "" if "]" in shown.partition("LINE=[millpond")[2] else type_until("", "]")
            assert f"LINE=[millpond {line}]" in shown
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def test_zsh_completes_metrics_of_runs(folder: Path) -> None:
    assert "entropy" in " ".join(complete("millpond", "compare", "creek", "--metric", "ent", cwd=folder, shell="zsh"))


def test_keys_of_the_recipe_complete_up_to_the_equals_sign() -> None:
    assert "ppo.gamma=" in override_choices(["metta"], "ppo.g")
    assert override_choices(["mixture"], "ppo.g") == []
    assert override_choices(["mixture"], "pqn.lear")[0] == "pqn.learning_rate="
    alone = override_choices(["metta"], "trainer.bptt_h")
    assert alone == ["trainer.bptt_horizon=", "trainer.bptt_horizon=64"]  # two, so that the shell adds no space
    assert override_choices(["metta", "metta"], "b:trainer.bptt_h")[0] == "b:trainer.bptt_horizon="


def test_env_ids_complete_after_their_family() -> None:
    assert "gymnasium:" in recipe_choices([], "gym")
    assert "gymnasium:CartPole-v1" in recipe_choices([], "gymnasium:Cart")
    assert "CartPole-v1" in recipe_choices(["train", "gymnasium", ":"], "Cart")  # as Bash splits words
    assert env_choices([], "minatar:br") == ["minatar:breakout"]


def test_files_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text("")
    (tmp_path / "other.txt").write_text("")
    (tmp_path / "odd").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recipe_choices([], "o") == ["odd/", "own.yaml"]
    (tmp_path / "odd" / "deep.ini").write_text("")
    assert recipe_choices([], "odd/") == ["odd/deep.ini"]


def test_states_complete_after_a_comma() -> None:
    assert complete_state("finished,f") == ["finished,finished", "finished,failed"]
