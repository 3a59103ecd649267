"""Comparisons of two plans: table, differences, alerts; and plans for several values of one key."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from millpond.config import recipe_names
from millpond.errors import MillpondError
from millpond.planner import plan
from millpond.planner.compare import compare, scale, show_compare, show_scale

# Parameter -> PufferLib, Metta.
EXPECTED = {
    "Total environments": (64, 2_720),
    "Environments per group": (32, 1_360),
    "Workers": (16, 16),
    "Agents per env": (64, 3),
    "batch_size, in its unit": (262_144, 524_288),
    "minibatch_size, in its unit": (32_768, 16_384),
    "bptt_horizon": (64, 64),
    "Total agents": (4_096, 8_160),
    "Rows": (4_096, 8_192),
    "Rows per minibatch": (512, 256),
    "Minibatches": (8, 32),
    "Update epochs": (1, 1),
    "Gradient updates": (8, 32),
    "Agent steps per gradient": (32_768, 49_152),
    "Iterations in the run": (1_144, 19_073),
}


def test_the_table_of_pufferlib_against_metta() -> None:
    comparison = compare(plan("puffer-metta"), plan("metta"))
    rows = {row.label: (row.a, row.b) for row in comparison.rows if not row.heading}
    assert {label: rows[label] for label in EXPECTED} == EXPECTED
    assert rows["Steps per env and iteration"] == (64, 192.7529)


def test_different_numbers_of_agents_are_an_alert() -> None:
    text = show_compare(compare(plan("puffer-metta"), plan("metta")))
    assert "!! ALERT: puffer-metta has 64 agents per env, metta has 3." in text


def test_differences_have_reasons() -> None:
    comparison = compare(plan("puffer-metta"), plan("metta"))
    text = " ".join(comparison.words.differences)
    assert "Algorithm: puffer-metta is PufferLib's, metta Millpond's" in text
    assert "ppo.row_state=zero: the recurrent state is zero at the start of every row" in text
    for topic in ("Units:", "Updates: 8 against 32", "Overlap:", "Diversity:", "Staleness", "Memory:"):
        assert topic in text
    for point in (*comparison.words.a_is_better_for, *comparison.words.b_is_better_for):
        assert ":" in point  # the purpose, then the reason


def test_a_config_against_itself_has_no_differences() -> None:
    comparison = compare(plan("metta"), plan("metta"))
    assert not comparison.settings
    assert not comparison.alerts
    assert not comparison.words.a_is_better_for
    assert not comparison.words.b_is_better_for


def test_swapping_the_sides_swaps_what_each_is_better_for() -> None:
    there, back = compare(plan("grid"), plan("metta")), compare(plan("metta"), plan("grid"))
    assert there.words.a_is_better_for == back.words.b_is_better_for


def test_an_ini_file_is_compared_with_a_recipe() -> None:
    ini = Path(__file__).parent.parent / "data" / "puffer_metta.ini"
    comparison = compare(plan(ini, ["env.num_agents=64"]), plan("metta"))
    assert any("the environments differ: mettagrid against grid" in alert for alert in comparison.alerts)


@pytest.mark.parametrize(("first", "second"), [pair for pair in product(recipe_names(), repeat=2) if pair[0] < pair[1]])
def test_comparisons_of_any_two_recipes_fit_the_page(first: str, second: str) -> None:
    text = show_compare(compare(plan(first), plan(second)))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "Differences that matter" in text


def test_json_has_the_contents_of_the_text() -> None:
    tree = compare(plan("puffer-metta"), plan("metta")).to_json()
    assert tree["a"]["gradient_updates"] == 8
    assert tree["b"]["gradient_updates"] == 32
    assert {"parameter": "Rows", "a": 4_096, "b": 8_192, "note": "x2"} in tree["table"]
    assert tree["alerts"]


def test_the_table_by_number_of_agents() -> None:
    text = show_scale(scale("metta", [], "env.num_agents=3,4,8,24"))
    for row in (
        ("3", "2,720", "8,192", "32", "1,572,864", "49,152"),
        ("4", "2,048", "8,192", "32", "2,097,152", "65,536"),
        ("8", "1,024", "8,192", "32", "4,194,304", "131,072"),
        ("24", "320", "8,192", "32", "12,582,912", "393,216"),
    ):
        assert any(line.split()[:6] == list(row) for line in text.splitlines()), row


def test_a_refused_value_is_shown_with_its_error() -> None:
    scaled = scale("metta", [], "trainer.minibatch_size=32768,10000,8_192")
    numbers = scaled.to_json()["plans"]
    assert [entry.get("num_minibatches") for entry in numbers] == [16, None, 64]
    assert "is not a multiple of" in numbers[1]["error"]
    text = show_scale(scaled)
    assert "10,000 is refused" in text
    assert "16 updates instead of 32" in " ".join(text.split())
    assert "2 times the memory of a training step" in " ".join(text.split())


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ("mixture-seed", "mixture.big_updates=100,1e4,1e6"),
        ("reward", "reward.cycles=1,10,100"),
        ("metta", "trainer.forward_pass_minibatch_target_size=4096,1e12"),
        ("metta", "ppo.gamma=0.9,0.99"),
        ("metta", "policy.core=lstm,gru,none"),
    ],
)
def test_any_key_of_any_kind_can_be_scaled(recipe: str, text: str) -> None:
    shown = show_scale(scale(recipe, [], text))
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("env.num_agents", "is not KEY=a,b,c"),
        ("env.num_agents=", "is not KEY=a,b,c"),
        ("env.agents=3,4", "did you mean env.num_agents"),
        ("trainer.minibatch_size=10000", "is not a multiple of"),
        (f"env.num_agents={','.join(['3'] * 40)}", "at most 32"),
    ],
)
def test_other_text_cannot_be_scaled(text: str, says: str) -> None:
    with pytest.raises(MillpondError) as caught:
        scale("metta", [], text)
    assert says in str(caught.value)
