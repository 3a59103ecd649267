"""The conclusion claims what the runs show, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.experiments.analysis import analyse, show
from millpond.experiments.file import Experiment, read_experiment
from millpond.experiments.page import page_lines
from millpond.experiments.pictures import draw_curves, draw_profiles, mean_curve
from millpond.experiments.results import Results, RunResult

WORLDS = ("minatar:breakout", "minatar:asterix")
RANDOM = {"minatar:breakout": 0.5, "minatar:asterix": 0.5}

RESETS = [
    {"frames": 50.0, "reset/before": 2.0, "reset/after": 1.0},
    {"frames": 60.0, "recovery": 12.0, "recovered": 1.0},
]


def results(scores: dict[str, list[float]], worlds: tuple[str, ...] = WORLDS) -> Results:
    return {
        world: {
            method: {
                seed: RunResult(
                    score,
                    10,
                    100,
                    1.0,
                    None if method == "single" else score / 2,
                    curve=[[50.0, score / 2], [100.0, score]],
                    resets=RESETS if method == "single-resets" else [],
                )
                for seed, score in enumerate(runs, start=1)
            }
            for method, runs in scores.items()
        }
        for world in worlds
    }


def settings(worlds: tuple[str, ...] = WORLDS) -> Experiment:
    return read_experiment("mixture-vs-single", worlds=worlds)


LOW, HIGH = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("mixture", "single", "worlds", "expected"),
    [
        (HIGH, LOW, WORLDS, "The mixture beat the single agent over 3 seeds of 2 worlds at 100 frames"),
        (LOW, HIGH, WORLDS, "The single agent beat the mixture over 3 seeds of 2 worlds"),
        (HIGH, LOW, WORLDS[:1], "no difference between the mixture and the single agent can be shown"),  # 2 / 20
        (
            [1.0, 5.0, 3.0],
            [2.0, 4.0, 3.0],
            WORLDS,
            "no difference between the mixture and the single agent can be shown",
        ),
    ],
)
def test_the_conclusion_claims_only_significant_differences(
    mixture: list[float], single: list[float], worlds: tuple[str, ...], expected: str
) -> None:
    scores = {"mixture": mixture, "single": single, "single-resets": single, "no-resets": mixture}
    answer = analyse(results(scores, worlds), RANDOM, settings(worlds))
    assert expected in answer.sentence
    assert "against the mixture without resets the probability is 0.50 (p = 1)" in answer.sentence


def test_the_table_has_every_game_and_a_common_scale() -> None:
    answer = analyse(
        results({"mixture": HIGH, "single": LOW, "single-resets": LOW, "no-resets": LOW}), RANDOM, settings()
    )
    text = "\n".join(show(answer))
    assert "minatar:breakout" in text
    assert "all worlds (random player 0, mean of single 1)" in text
    common = {row.method: row for row in answer.rows if row.world == "all worlds"}
    assert common["single"].mean.value == pytest.approx(1.0)
    assert common["mixture"].mean.value == pytest.approx((5 - 0.5) / (2 - 0.5))
    assert common["mixture"].improvement is not None
    assert common["mixture"].improvement.value == 1.0
    assert "single-resets: 6 resets changed the evaluation by -1.00 on average" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("random", [{}, {"minatar:breakout": 7.0, "minatar:asterix": 7.0}])
def test_the_common_scale_does_not_turn_round_where_the_baseline_is_below_its_zero(random: dict[str, float]) -> None:
    """Returns of Pendulum and Acrobot are negative, and a baseline may play worse than at random."""
    shift = 0.0 if random else -10.0
    better, worse = [score + shift for score in HIGH], [score + shift for score in LOW]
    answer = analyse(results({"mixture": better, "single": worse}), random, settings())
    common = {row.method: row for row in answer.rows if row.world == "all worlds"}
    assert common["single"].mean.value == pytest.approx(-1.0)
    assert common["mixture"].mean.value > common["single"].mean.value
    assert common["mixture"].improvement is not None
    assert common["mixture"].improvement.value == 1.0
    assert "mean of single 1, -1 in 2 worlds)" in "\n".join(show(answer))


def test_no_conclusion_without_finished_runs_of_both_methods() -> None:
    answer = analyse(results({"mixture": HIGH}), RANDOM, settings())
    assert answer.sentence == "Not enough runs are finished to compare the mixture and the single agent."


def test_curves_are_averaged_over_seeds_and_drawn(tmp_path: Path) -> None:
    collected = results({"mixture": HIGH, "single": LOW})
    curve = mean_curve(collected[WORLDS[0]]["mixture"])
    assert (curve["frames"], curve["mean"]) == ([50.0, 100.0], [2.5, 5.0])
    assert all(4.0 <= low < 5.0 < high <= 6.0 for low, high in [(curve["low"][1], curve["high"][1])])
    answer = analyse(collected, RANDOM, settings())
    draw_curves(collected, answer, settings(), [tmp_path / "curves.png", tmp_path / "curves.svg"])
    draw_profiles(answer, settings(), [tmp_path / "profiles.png"])
    assert (tmp_path / "profiles.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "minatar:asterix" in (tmp_path / "curves.svg").read_text() or (tmp_path / "curves.svg").stat().st_size > 5000


def test_curves_with_different_points_are_averaged_where_all_have_them() -> None:
    runs = {
        1: RunResult(1.0, 1, 100, 1.0, None, curve=[[0.0, 0.0], [100.0, 10.0]], curve_seconds=[0.0, 5.0]),
        2: RunResult(1.0, 1, 100, 1.0, None, curve=[[50.0, 0.0], [80.0, 3.0]], curve_seconds=[1.0, 2.0]),
    }
    curve = mean_curve(runs)
    assert (curve["frames"][0], curve["frames"][-1]) == (50.0, 80.0)
    assert (curve["mean"][0], curve["mean"][-1]) == (pytest.approx(2.5), pytest.approx(5.5))
    assert mean_curve(runs, "seconds")["mean"][-1] == pytest.approx((4.0 + 3.0) / 2)


def test_efficiency_is_when_half_of_the_runs_have_reached_the_threshold() -> None:
    collected = results({"mixture": HIGH, "single": [1.0, 9.0, 9.0]}, WORLDS[:1])
    answer = analyse(collected, RANDOM, settings(WORLDS[:1]))
    by_method = {one.method: one for one in answer.efficiency}
    # The lowest point is 0.5, the best mean at the end 19 / 3: the threshold is half way between.
    assert by_method["single"].threshold == pytest.approx((0.5 + 19 / 3) / 2)
    assert (by_method["single"].reached, by_method["single"].frames) == (2, 50.0)
    assert (by_method["mixture"].reached, by_method["mixture"].frames) == (3, 100.0)
    assert by_method["mixture"].seconds is None  # curves without times


def test_profiles_are_on_the_common_scale() -> None:
    answer = analyse(results({"mixture": HIGH, "single": LOW}), RANDOM, settings())
    profile = answer.profiles["single"]
    at_half = min(range(len(profile.thresholds)), key=lambda k: abs(profile.thresholds[k] - 0.5))
    assert profile.thresholds[0] == pytest.approx(0.5 / 1.5)  # (1 - random) / (mean of single - random)
    assert profile.fractions[at_half].value == pytest.approx(2 / 3)


def test_the_page_has_table_conclusion_and_pictures() -> None:
    collected = results({"mixture": HIGH, "single": LOW})
    experiment = settings()
    text = "\n".join(page_lines(experiment, analyse(collected, RANDOM, experiment), collected))
    assert "# Does a mixture beat a single agent" in text
    assert "| mixture | 6 | " in text
    assert "P(> single)" in text
    assert "![Learning curves](curves.png)" in text
    assert "3 seeds in each of 2 worlds can show a difference of 2.0 standard deviations" in text
