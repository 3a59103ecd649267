"""Reports of real runs: finished, running, crashed, of every kind, and with hostile text in their files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from PIL import Image, ImageSequence

import millpond
from millpond.config import load
from millpond.errors import MillpondError
from millpond.report import Block, Facts, Picture, read_facts, write_report
from millpond.report.iteration import stages
from millpond.report.markup import tag
from millpond.report.page import MIXTURE, page, sections_of
from millpond.store import Checkpoints, Run
from millpond.trainers.common import reporting
from millpond.trainers.common.play import evaluate_run
from millpond.trainers.common.session import start_run
from millpond.trainers.mixture.trainer import MixtureTrainer
from millpond.trainers.reward.trainer import RewardTrainer
from tests.support.html_page import Page
from tests.support.ppo_runs import train_small
from tests.support.records import records


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real run that evaluates after every iteration and keeps few checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    changes = {"trainer.total_iterations": 6, "eval.interval": 1, "checkpoint.keep_last": 1}
    return train_small(root, "creek", **changes).run


@pytest.fixture
def copy(trained: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.folder, tmp_path / "creek"))


def test_training_ends_with_a_report(trained: Run) -> None:
    text = trained.report_path.read_text()
    html = Page(text)
    assert html.headings == [
        "Return", "Summary", "Evaluation", "One iteration in nine stages", "Curves", "Time by phase", "Checkpoints",
        "Plan", "Config", "Host",
    ]  # fmt: skip
    assert html.loads() == []
    assert not re.search(r"url\(|@import|https?:", text)
    assert "could not" not in html.text
    assert "finished" in html.text
    for words in ("of the way from random to greedy", "agent steps per second", "(best)", "millpond eval creek --best"):
        assert words in html.text
    for metric in (
        "episode_return", "policy_loss", "value_loss", "entropy", "approx_kl", "explained_variance", "grad_norm",
        "agent_steps_per_second",
    ):  # fmt: skip
        assert f"{metric} over agent steps" in html.text
    assert "clip_fraction" in [data for tag, data in html.texts if tag == "td"]  # never changed in a run this short
    images = [attributes["src"] for tag, attributes in html.elements if tag == "img"]
    assert len(images) == 1
    assert images[0].startswith("data:image/gif;base64,R0lGOD")


def test_numbers_equal_those_of_the_records(trained: Run) -> None:
    html, lines = Page(trained.report_path.read_text()), records(trained.folder)
    last = lines[-1]
    assert f"{int(last['agent_steps']):,}" in html.text
    assert f"{last['eval/episode_return']:.4g}" in html.text
    rows = [data for tag, data in html.texts if tag == "td"]
    assert sum(cell.endswith("(best)") for cell in rows) == 2  # in the evaluations, and in the checkpoints


def test_return_comes_first_with_training_evaluations_and_baselines_beside_the_episode(trained: Run) -> None:
    text = trained.report_path.read_text()
    first = text[: text.index("Summary</h2>")]
    assert first.count("return over agent steps") == 2  # for wide windows and for narrow ones
    for words in ("evaluations</li>", "training</li>", "greedy ", "random ", "data:image/gif"):
        assert words in first


def test_metrics_that_never_change_are_folded(tmp_path: Path) -> None:
    rows = [
        {"updates": k, "agent_steps": 0, "seconds": k, "R_loss": 1 / k, "fixed": 0.25, "lone": 1.0} for k in (1, 2, 3)
    ]
    del rows[0]["lone"], rows[1]["lone"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(tmp_path).read_text()
    assert "1 metric that never changed" in text
    assert "fixed over updates" not in text
    assert "lone over updates" in text  # a single value says nothing about change
    assert re.search(r"fixed</td><td>0.25</td>", text)


def test_nine_stages_have_the_numbers_of_the_run_and_name_modules_that_exist(trained: Run) -> None:
    facts = read_facts(trained.folder)
    nine = stages(facts)
    assert len(nine) == 9
    numbers = {name: value for stage in nine for name, value in stage.numbers}
    assert numbers["envs"] == "6"
    assert numbers["gradient updates"] == "4"
    assert numbers["iterations"] == "6 recorded of 6"
    assert numbers["rounds"] == "2 whole rounds, then a top-up round for the last 4 rows"
    root = Path(millpond.__file__).parent.parent
    for stage in nine:
        for module in stage.module.split(", "):
            path = root / module.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_running_crashed_and_empty_runs_have_reports(copy: Path) -> None:
    lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:30])  # a line half written
    status = {**json.loads((copy / "state.json").read_text()), "state": "running"}
    (copy / "state.json").write_text(json.dumps(status))
    assert "running" in Page(write_report(copy).read_text()).text
    status["process"]["pid"] = 2**22 + 1  # larger than any there is
    (copy / "state.json").write_text(json.dumps(status))
    html = Page(write_report(copy).read_text())
    assert "died without an error message" in html.text
    assert "2 recorded of 6" in html.text
    assert "img" not in {tag for tag, _ in html.elements}
    (copy / "metrics.jsonl").unlink()
    shutil.rmtree(copy / "checkpoints")
    empty = Page(write_report(copy).read_text())
    assert "Curves" not in empty.headings
    assert "Config" in empty.headings


def test_metrics_file_alone_is_enough(tmp_path: Path) -> None:
    """Any kind of trainer: curves of several learners share a chart, and an offline run is drawn over updates."""
    rows: list[dict[str, float]] = [
        {
            "updates": k,
            "agent_steps": 0,
            "seconds": k,
            "R_loss": 1 / k,
            "agent0/q": k,
            "agent1/q": 2 * k,
            "time/train": 1,
        }
        for k in range(1, 400)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    html = Page(write_report(tmp_path).read_text())
    assert html.headings == ["Summary", "Curves", "Time by phase"]
    assert "R_loss over updates" in html.text
    assert "q over updates" in html.text
    assert html.count("svg", "chart") == 2
    assert {"agent0", "agent1"} <= {data for tag, data in html.texts if tag == "li"}
    assert "config.yaml cannot be read" in html.text
    assert html.loads() == []


def test_hostile_text_is_escaped(copy: Path) -> None:
    evil = "</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"
    config = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump({**config, "description": evil}))
    host = json.loads((copy / "host.json").read_text())
    (copy / "host.json").write_text(json.dumps({**host, "host": evil, "command": ["millpond", evil], evil: evil}))
    plan = json.loads((copy / "plan.json").read_text())
    (copy / "plan.json").write_text(json.dumps({**plan, evil: evil, "notes": [evil]}))
    state = json.loads((copy / "state.json").read_text())
    (copy / "state.json").write_text(json.dumps({**state, "note": evil}))
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    changed = [{**row, evil: 1.0, f"time/{evil}": 1.0, f"eval/env/{evil}": 2.0, "words": evil} for row in rows]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    named = copy.rename(copy.with_name("<b onclick=x>"))
    html = Page(write_report(named, Picture(None, evil)).read_text())
    assert html.loads() == []
    assert html.count("script") == html.count("img") == 0
    assert html.text.count("<script>alert(1)</script>") > 8


def test_damaged_files_are_named(copy: Path) -> None:
    (copy / "plan.json").write_text("{")
    (copy / "config.yaml").write_text("a: [")
    (copy / "metrics.jsonl").write_text((copy / "metrics.jsonl").read_text() + "nonsense\n")
    newest = Checkpoints(copy / "checkpoints").updates()[-1]
    (Checkpoints(copy / "checkpoints").path(newest) / "manifest.json").write_text("{}")
    html = Page(write_report(copy).read_text())
    for words in (
        "plan.json cannot be read",
        "config.yaml is not valid YAML",
        "is not a record",
        f"checkpoint {newest} is",
    ):
        assert words in html.text
    assert "Curves" in html.headings


def test_kind_adds_sections_and_a_section_that_raises_does_not_affect_others(trained: Run, monkeypatch: Any) -> None:
    def rounds(facts: Facts) -> Block:
        return Block("Rounds", tag("p", f"{len(facts.records)} of them"))

    def broken(facts: Facts) -> Block:
        raise KeyError("gone")

    monkeypatch.setattr("millpond.report.page.MIXTURE", replace(MIXTURE, sections=(rounds, broken)))
    facts = replace(read_facts(trained.folder), kind="mixture")
    html = Page(page(facts, sections_of(facts)))
    assert "6 of them" in html.text
    assert "This section could not be made: KeyError: 'gone'" in html.text
    assert html.headings[-1] == "Host"


def test_report_that_cannot_be_written_does_not_fail_the_run(copy: Path, capsys: Any) -> None:
    (copy / "report.html").unlink()
    (copy / "report.html").mkdir()  # so that no file can take its place
    reporting.report_at_end(Run.open(copy.parent, "creek"))
    message = capsys.readouterr().err
    assert "the report of run creek could not be written (IsADirectoryError" in message
    assert f"millpond report {copy}" in message
    assert not list(copy.glob(".report*"))


def test_env_that_cannot_be_made_gives_a_reason_instead_of_a_picture(copy: Path) -> None:
    (copy / "config.yaml").write_text("kind: ppo\nenv: {id: nothing}\n")
    picture = reporting.draw_episode(copy, trust=False)
    assert picture is not None
    assert picture.gif is None
    assert picture.caption.startswith("No picture: ")


ALONE = {"env.num_agents": 1, "env.stagger": False, "env.max_steps": None, "trainer.total_iterations": 1}


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("make_no_render", "it has no render()"),
        ("make_raising_render", "render() raised RuntimeError: the window is gone"),
    ],
)
def test_env_without_render_has_a_report_with_the_reason(tmp_path: Path, factory: str, reason: str) -> None:
    trainer = train_small(tmp_path, "blind", **{**ALONE, "env.id": f"tests.support.custom_envs:{factory}"})
    html = Page(trainer.run.report_path.read_text())
    words = f"env 'tests.support.custom_envs:{factory}' cannot be drawn: {reason}"
    assert f"No picture: {words}" in html.text
    assert html.count("img") == 0
    assert "Curves" in html.headings
    summary = "\n".join(trainer.summary())
    assert "millpond eval" in summary
    assert "--render" not in summary  # it would only fail
    with pytest.raises(MillpondError, match=re.escape(words)) as caught:
        evaluate_run(str(trainer.run.folder), episodes=1, render=tmp_path / "blind.gif")
    assert caught.value.exit_code == 2


def test_gif_shows_an_episode_from_its_first_state_to_its_last_action(tmp_path: Path) -> None:
    """The env is made again with render_mode="rgb_array", even if the run's env had none; bar k is k steps long."""
    trainer = train_small(tmp_path, "bar", **{**ALONE, "env.id": "tests.support.custom_envs:make_bar"})
    assert Page(trainer.run.report_path.read_text()).count("img") == 1
    assert any("--render bar.gif" in line for line in trainer.summary())
    path = tmp_path / "bar.gif"
    evaluation, _ = evaluate_run(str(trainer.run.folder), episodes=2, render=path)
    assert evaluation.lengths == (7, 7)
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("L")) for frame in ImageSequence.Iterator(gif)]
    assert [int((frame[0] > 128).sum()) // 8 for frame in frames] == [0, 1, 2, 3, 4, 5, 6]


def test_render_path_must_end_in_gif_in_an_existing_folder(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match=r"must end in \.gif; try '.*film\.gif'"):
        evaluate_run(str(trained.folder), episodes=1, render=tmp_path / "film.mp4")
    with pytest.raises(MillpondError, match=r"no folder '.*missing' for the picture"):
        evaluate_run(str(trained.folder), episodes=1, render=tmp_path / "missing" / "film.gif")


def test_reward_run_has_a_report_without_agent_sections(tmp_path: Path) -> None:
    small = {"reward.epochs": 1, "reward.cycles": 2, "reward.iterations": 1, "reward.train_batches": 2}
    loaded = load("reward", {**small, "reward.hidden_size": 16, "log.tensorboard": False, "run_dir": str(tmp_path)})
    trainer = RewardTrainer(loaded, start_run(loaded, "learned"))
    trainer.train()
    html = Page(trainer.run.report_path.read_text())
    cells = [data for tag, data in html.texts if tag == "td"]
    facts = " ".join(cells[: cells.index("began")])
    assert "data pendulum" in facts
    assert "objective lrd, 16 units" in facts
    for wrong in ("grid", "lstm", "return"):
        assert wrong not in facts
    assert "img" not in {tag for tag, _ in html.elements}
    assert "held_out/step_pearson when evaluated" in html.text
    assert "step pearson" in [data for tag, data in html.texts if tag == "span"]
    assert {"learned", "even", "time"} <= {data for tag, data in html.texts if tag == "li"}
    assert "millpond reward score learned EPISODES --best" in html.text
    assert f"Report: {trainer.run.report_path}" in trainer.summary()
    assert not any("millpond eval" in line for line in trainer.summary())


def test_mixture_stopped_before_the_bigagent_trained_is_captioned_so(tmp_path: Path) -> None:
    small = {
        "mixture.agents": 2, "mixture.total_frames": 512, "mixture.collections_per_round": 4, "mixture.big_updates": 5,
        "mixture.pond_transitions": 128, "mixture.big_pond_transitions": 100, "pqn.num_envs": 4, "pqn.num_steps": 8,
        "pqn.num_minibatches": 2, "lake.acknowledge_every": 20, "dqn.batch_size": 8, "policy.hidden_size": 16,
        "env.max_steps": 30, "eval.episodes": 1, "log.tensorboard": False, "run_dir": str(tmp_path),
    }  # fmt: skip
    loaded = load("mixture", small)
    trainer = MixtureTrainer(loaded, start_run(loaded, "early"))
    try:
        trainer.loop.at_end("portion", lambda ended: trainer.loop.stop("enough"), at=[1])
        trainer.train()
    finally:
        trainer.close()
    assert trainer.counters.updates > 0
    html = Page(trainer.run.report_path.read_text())
    (caption,) = (data for tag, data in html.texts if tag == "figcaption" and "checkpoint" in data)
    assert caption.endswith("newest checkpoint, the BigAgent after 0 updates of its own")
    assert "2 PQN agents and the BigAgent (DQN), 16 units each" in html.text
    assert "all" in {data for tag, data in html.texts if tag == "li"}


def test_report_command(copy: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millpond", "report", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=copy.parent)

    (copy / "report.html").unlink()
    done = run("creek", "--run-dir", ".", "--pictures", "charts")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("creek/report.html\n  charts/return.svg\n  charts/phases.svg\n")
    drawn = {path.name: ElementTree.parse(path).getroot() for path in (copy.parent / "charts").iterdir()}
    assert {"entropy.svg", "env-ores.svg"} <= drawn.keys()
    assert all(root.tag.endswith("}svg") for root in drawn.values())
    assert (copy / "report.html").stat().st_size > 50_000
    nothing = run("nothing")
    assert nothing.returncode == 2
    assert "no run 'nothing'" in nothing.stderr
