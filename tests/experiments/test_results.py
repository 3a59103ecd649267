"""The conclusion claims what the runs show, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.config import MixtureRecipe, load
from millpond.errors import MillpondError
from millpond.experiments.mixture_vs_single import (
    DEFAULT_METHODS,
    METHODS,
    ExperimentSettings,
    all_jobs,
    check_settings,
    run_overrides,
)
from millpond.experiments.results import Results, RunResult, analyse, show
from millpond.experiments.run import draw_curves, mean_curve
from millpond.planner import MixturePlan, plan

GAMES = ("minatar:breakout", "minatar:asterix")
RANDOM = {"minatar:breakout": 0.5, "minatar:asterix": 0.5}

RESETS = [
    {"frames": 50.0, "reset/before": 2.0, "reset/after": 1.0},
    {"frames": 60.0, "recovery": 12.0, "recovered": 1.0},
]


def results(scores: dict[str, list[float]], games: tuple[str, ...] = GAMES) -> Results:
    return {
        game: {
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
        for game in games
    }


def settings(games: tuple[str, ...] = GAMES) -> ExperimentSettings:
    return ExperimentSettings(frames=100, seeds=3, games=games, methods=DEFAULT_METHODS)


LOW, HIGH = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("mixture", "single", "games", "expected"),
    [
        (HIGH, LOW, GAMES, "The mixture beat the single agent over 3 seeds of 2 games at 100 frames"),
        (LOW, HIGH, GAMES, "The single agent beat the mixture over 3 seeds of 2 games"),
        (HIGH, LOW, GAMES[:1], "no difference between the mixture and the single agent can be shown"),  # 2 / 20
        (
            [1.0, 5.0, 3.0],
            [2.0, 4.0, 3.0],
            GAMES,
            "no difference between the mixture and the single agent can be shown",
        ),
    ],
)
def test_the_conclusion_claims_only_significant_differences(
    mixture: list[float], single: list[float], games: tuple[str, ...], expected: str
) -> None:
    scores = {"mixture": mixture, "single": single, "single-resets": single, "no-resets": mixture}
    answer = analyse(results(scores, games), RANDOM, settings(games))
    assert expected in answer.sentence
    assert "against the mixture without resets the probability is 0.50 (p = 1)" in answer.sentence


def test_the_table_has_every_game_and_a_common_scale() -> None:
    answer = analyse(
        results({"mixture": HIGH, "single": LOW, "single-resets": LOW, "no-resets": LOW}), RANDOM, settings()
    )
    text = "\n".join(show(answer))
    assert "minatar:breakout" in text
    assert "all games (random player 0, mean of single 1)" in text
    common = {row.method: row for row in answer.rows if row.game == "all games"}
    assert common["single"].mean.value == pytest.approx(1.0)
    assert common["mixture"].mean.value == pytest.approx((5 - 0.5) / (2 - 0.5))
    assert common["mixture"].improvement is not None
    assert common["mixture"].improvement.value == 1.0
    assert "single-resets: 6 resets changed the evaluation by -1.00 on average" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


def test_no_conclusion_without_finished_runs_of_both_methods() -> None:
    answer = analyse(results({"mixture": HIGH}), RANDOM, settings())
    assert answer.sentence == "Not enough runs are finished to compare the mixture with the single agent."


def test_curves_are_averaged_over_seeds_and_drawn(tmp_path: Path) -> None:
    collected = results({"mixture": HIGH, "single": LOW})
    curve = mean_curve(collected[GAMES[0]]["mixture"])
    assert curve == {"frames": [50.0, 100.0], "mean": [2.5, 5.0], "low": [2.0, 4.0], "high": [3.0, 6.0]}
    draw_curves(collected, RANDOM, settings(), [tmp_path / "curves.png", tmp_path / "curves.svg"])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "minatar:asterix" in (tmp_path / "curves.svg").read_text() or (tmp_path / "curves.svg").stat().st_size > 5000


def test_every_method_has_the_same_frames_rounds_and_gradient_steps() -> None:
    plans = {}
    for method in METHODS:
        planned = plan("mixture", list(run_overrides(ExperimentSettings(), "minatar:breakout", method, 3))).plan
        assert isinstance(planned, MixturePlan)
        plans[method] = planned
    frames = {method: planned.frames for method, planned in plans.items() if method != "live"}
    assert set(frames.values()) == {1_048_576}
    assert 0.97 < plans["live"].frames / 1_048_576 <= 1.0  # whole collections of five times 4,096
    assert {planned.rounds for planned in plans.values()} <= {8, 7}
    for method in ("single-resets", "no-resets"):
        assert plans[method].big_updates == plans["mixture"].big_updates
        assert plans[method].frames_per_round == plans["mixture"].frames_per_round
    assert plans["single"].transitions_per_collection == plans["mixture"].transitions_per_collection
    seed = load("mixture", list(run_overrides(ExperimentSettings(), "minatar:breakout", "single", 3))).recipe
    assert isinstance(seed, MixtureRecipe)
    assert (seed.seed, seed.mixture.agents, seed.mixture.mode) == (3, 1, "single")


def test_invalid_settings_are_refused_before_anything_runs() -> None:
    with pytest.raises(MillpondError, match=r"methods=magic are unknown; there are mixture, single"):
        check_settings(ExperimentSettings(methods=("mixture", "magic")))
    with pytest.raises(MillpondError, match="is of kind ppo"):
        check_settings(ExperimentSettings(recipe="grid"))
    with pytest.raises(MillpondError, match="minatar:chess: there is no such game"):
        check_settings(ExperimentSettings(games=("minatar:chess",)))
    assert len(all_jobs(ExperimentSettings())) == 3 * 2 * 4
