from pathlib import Path

import pytest

from millpond.store import RunRow, choose_runs, sort_runs
from millpond.store.query import Condition, QueryError, parse_number


def row(name, result=None, *, state="finished", steps=100, metrics=None):
    counters = {"agent_steps": steps, "updates": 5, "seconds": 10.0}
    return RunRow(name, Path(name), state, "", 0.0, None, None, result, None, result, counters, metrics or {})


ROWS = [
    row("grid-1", 0.5, metrics={"entropy": 0.1}),
    row("grid-2", None, state="failed", steps=0),
    row("lake-1", 0.9, state="running", steps=2_000_000, metrics={"entropy": 1.0}),
]


def names(rows):
    return [row.name for row in rows]


def test_runs_are_chosen_by_text_state_and_conditions():
    assert names(choose_runs(ROWS, texts=["GRID"])) == ["grid-1", "grid-2"]
    assert names(choose_runs(ROWS, texts=["grid", "2"])) == ["grid-2"]
    assert names(choose_runs(ROWS, states=["failed", "running"])) == ["grid-2", "lake-1"]
    assert names(choose_runs(ROWS, where=["return>0.5"])) == ["lake-1"]
    assert names(choose_runs(ROWS, where=["return>=0.5", "entropy<0.5"])) == ["grid-1"]
    assert names(choose_runs(ROWS, where=["steps>1M"])) == ["lake-1"]
    assert names(choose_runs(ROWS, where=["state!=failed"])) == ["grid-1", "lake-1"]
    assert names(choose_runs(ROWS, where=["age<1h"])) == []  # of 1970
    assert names(choose_runs(ROWS)) == names(ROWS)


def test_conditions_on_settings_read_the_config():
    settings = {"grid-1": {"env.id": "grid", "ppo.learning_rate": 1e-3}, "grid-2": {}, "lake-1": {"env.id": "grid"}}
    options = {"settings": lambda folder: settings[folder.name]}
    assert names(choose_runs(ROWS, where=["env.id=Grid"], **options)) == ["grid-1", "lake-1"]
    assert names(choose_runs(ROWS, where=["ppo.learning_rate = 0.001"], **options)) == ["grid-1"]


def test_config_is_not_read_for_columns_and_metrics():
    def fail(folder):
        raise AssertionError

    assert names(choose_runs(ROWS[:1], where=["return>0", "entropy>0", "updates=5"], settings=fail)) == ["grid-1"]


def test_highest_come_first_and_runs_without_a_value_last():
    assert names(sort_runs(ROWS, "return")) == ["lake-1", "grid-1", "grid-2"]
    assert names(sort_runs(ROWS, "return", reverse=True)) == ["grid-1", "lake-1", "grid-2"]
    assert names(sort_runs(ROWS, "name")) == ["grid-1", "grid-2", "lake-1"]
    assert names(sort_runs(ROWS, "entropy")) == ["lake-1", "grid-1", "grid-2"]
    assert names(sort_runs(ROWS, "speed"))[0] == "lake-1"


@pytest.mark.parametrize("text", ["return", "return>", ">1", "return ~ 1", "entropy>high"])
def test_bad_conditions_say_what_is_expected(text):
    with pytest.raises(QueryError, match=r"such as 'return>0.5'|is not a number"):
        choose_runs(ROWS, where=[text])


def test_unknown_states_and_columns_are_refused():
    with pytest.raises(QueryError, match="running, finished, stopped, failed"):
        choose_runs(ROWS, states=["done"])
    with pytest.raises(QueryError, match="sort by return, best"):
        sort_runs(ROWS, "retrun")


def test_numbers_have_units():
    shown = [parse_number(text) for text in ("0.5", "1e6", "1_000", "2M", "3h", "x", "")]
    assert shown == [0.5, 1e6, 1000.0, 2e6, 10_800.0, None, None]
    assert Condition.parse("a.b == c") == Condition("a.b", "=", "c")
