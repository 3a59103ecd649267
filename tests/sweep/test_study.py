"""Optuna's study: points, what becomes of them, and a journal that survives kills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond.config import load
from millpond.errors import MillpondError
from millpond.sweep.folder import SweepFolder, SweepSettings
from millpond.sweep.space import make_space
from millpond.sweep.study import JOURNAL, SweepStudy, best_of, check_sampler, same_point
from tests.support.sweeps import record, settings

pytest.importorskip("optuna")


RANGES: dict[str, Any] = {"ppo.gamma": {"range": [0.5, 1.0]}, "ppo.ent_coef": {"range": [0.0, 1.0]}}


def study_in(path: Path, wanted: SweepSettings | None = None) -> SweepStudy:
    wanted = wanted or settings()
    folder = SweepFolder(path)
    folder.begin(wanted)
    return SweepStudy(folder, wanted, make_space(wanted.space, load(wanted.recipe, wanted.overrides), "space"))


def test_two_processes_share_the_study_and_get_different_points(tmp_path: Path) -> None:
    first, second = study_in(tmp_path), study_in(tmp_path)
    asked = [first.ask(), second.ask(), first.ask()]
    assert [number for number, _ in asked] == [0, 1, 2]
    assert len({point["ppo.learning_rate"] for _, point in asked}) == 3
    assert second.open_numbers() == [0, 1, 2]


def test_a_killed_sweep_asks_for_the_same_points(tmp_path: Path) -> None:
    whole = study_in(tmp_path / "whole")
    points = [whole.ask() for _ in range(6)]
    again = [study_in(tmp_path / "killed").ask() for _ in range(6)]  # a new process for each
    assert again == points


def test_what_became_of_a_point_is_told_with_its_reason(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    for _ in range(4):
        study.ask()
    study.refused(0, "a rule")
    study.failed(1, "an error")
    study.stopped(record(2, [1.0, 2.0], fraction=0.5, state="stopped", reason="poor"))
    study.finished(record(3, [5.0, 7.0]))
    assert study.open_numbers() == []
    assert study_in(tmp_path).reasons() == {0: "a rule", 1: "an error", 2: "poor"}


def test_the_search_learns_from_its_trials(tmp_path: Path) -> None:
    wanted = settings(trials=40, space={"ppo.learning_rate": {"log": [1e-5, 1.0]}})
    study = study_in(tmp_path, wanted)
    rates = []
    for number in range(40):
        asked, point = study.ask()
        assert asked == number
        rates.append(point["ppo.learning_rate"])
        score = -abs(float(rates[-1]) - 1e-3) * 1e3  # best at 1e-3
        study.finished(record(number, [score, score]))
    assert sum(2e-4 < rate < 5e-3 for rate in rates[20:]) > sum(2e-4 < rate < 5e-3 for rate in rates[:20]) + 3


def test_importance_finds_the_key_that_matters(tmp_path: Path) -> None:
    study = study_in(tmp_path, settings(sampler="random", space=RANGES))
    assert study.importance() == {}
    for number in range(30):
        _, point = study.ask()
        study.finished(record(number, [point["ppo.gamma"]] * 2))
    importance = study.importance()
    assert sum(importance.values()) == pytest.approx(1.0)
    assert importance["ppo.gamma"] > 0.8


def test_two_objectives_have_a_pareto_front(tmp_path: Path) -> None:
    study = study_in(tmp_path, settings(objectives=("return", "hours")))
    for number, (score, seconds) in enumerate([(10.0, 100.0), (5.0, 10.0), (4.0, 50.0)]):
        study.ask()
        study.finished(record(number, [score, score], seconds=seconds))
    assert study.pareto() == [0, 1]
    study.ask()
    study.refused(3, "a rule")
    assert study.open_numbers() == []
    assert study.ask()[0] == 4


def test_a_journal_with_an_unfinished_line_is_read_to_its_last_whole_one(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study.ask()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    again = study_in(tmp_path)
    assert again.open_numbers() == [0]
    assert again.ask()[0] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "grid"}, "--sampler grid is unknown; there are tpe, cmaes, random"),
        ({"sampler": "cmaes"}, r"searches ranges; choices and conditions \(trainer.update_epochs\) need --sampler tpe"),
        ({"sampler": "cmaes", "objectives": ("return", "hours")}, "searches for one objective"),
    ],
)
def test_what_a_sampler_cannot_search_is_refused(changes: dict[str, Any], message: str) -> None:
    wanted = settings(**changes)
    space = make_space(wanted.space, load(wanted.recipe, wanted.overrides), "space")
    with pytest.raises(MillpondError, match=message):
        check_sampler(wanted, space)


def test_cma_es_searches_ranges(tmp_path: Path) -> None:
    wanted = settings(sampler="cmaes", space=RANGES)
    study = study_in(tmp_path, wanted)
    for number in range(12):
        _, point = study.ask()
        study.finished(record(number, [-abs(point["ppo.gamma"] - 0.7)] * 2))
    assert study_in(tmp_path, wanted).ask()[0] == 12


def test_the_best_is_the_first_of_the_highest_or_lowest() -> None:
    trials = [record(0, [1.0, 3.0]), record(1, [2.0, 2.0]), record(2, [9.0, 9.0], state="stopped")]
    best = best_of(trials, settings())
    assert best is not None
    assert best.number == 0
    lowest = best_of([*trials, record(3, [0.0, 0.0])], replace(settings(), minimize=True))
    assert lowest is not None
    assert lowest.number == 3
    assert best_of(trials[2:], settings()) is None
    assert same_point({"ppo.learning_rate": 0.002}, trials) == trials[1]
    assert same_point({"ppo.learning_rate": 0.5}, trials) is None
