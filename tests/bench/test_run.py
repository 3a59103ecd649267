"""A quick bench of PPO: every stage is measured, phases add up, and the result is text, JSON and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.bench.run import Bench, run_bench, store_for_plans
from millpond.bench.show import draw_bench, show_bench, waterfall
from millpond.config import load
from millpond.config.debug import debug_settings
from millpond.planner import plan
from millpond.planner.estimate import read_measured

STAGES = ["world", "vector", "inference", "storing", "advantage", "training", "loop", "lake append", "lake sample"]


@pytest.fixture(scope="module")
def quick() -> Bench:
    return run_bench("grid", quick=True)


def test_every_stage_is_measured(quick: Bench) -> None:
    assert [stage.name for stage in quick.stages] == STAGES
    for stage in quick.stages:
        assert stage.alone > 0
        assert stage.amount > 0
        assert stage.limit == "" or (stage.at_best is not None and stage.at_best > 0), stage.name
    assert [stage.name for stage in quick.stages if stage.together is None] == ["world", "lake append", "lake sample"]


def test_matrix_products_are_counted(quick: Bench) -> None:
    """Grid cells are table lookups, so the products are those of the counts, the core and the heads."""
    stages = {stage.name: stage for stage in quick.stages}
    hidden, counts, actions = 16, 3, 5
    forward = 2 * (counts * hidden + 8 * hidden * hidden + hidden * (actions + 1))
    assert quick.limits is not None
    acting = stages["inference"].at_best * quick.limits.float32 / quick.sizes["agent_steps"]  # type: ignore[operator]
    assert acting == pytest.approx(forward)
    training = stages["training"].at_best * quick.limits.float32 / quick.sizes["agent_steps"]  # type: ignore[operator]
    assert training == pytest.approx(3 * forward)


def test_phases_add_up_to_the_iteration(quick: Bench) -> None:
    assert waterfall(quick)[-1][2] == pytest.approx(quick.iteration.seconds.median)
    assert quick.iteration.seconds.count == 1
    assert quick.iteration.ratio.median == pytest.approx(quick.iteration.seconds.median / quick.iteration.bare.seconds)


def test_iteration_is_shown_beside_its_products_alone(quick: Bench) -> None:
    assert list(quick.iteration.products) == ["collect", "train"]
    assert all(seconds.low > 0 for seconds in quick.iteration.products.values())
    assert "Against the products of the networks alone" in show_bench(quick)


@pytest.mark.parametrize(
    "settings",
    [
        ["env.id=gymnasium:CartPole-v1", "policy.core=none"],
        ["env.id=gymnasium:Pendulum-v1", "policy.core=gru"],
        ["env.id=minatar:breakout", "policy.core=none"],
    ],
    ids=["vectors without memory", "a GRU and vectors of actions", "images"],
)
def test_other_encoders_cores_and_heads_are_measured(settings: list[str]) -> None:
    bench = run_bench("grid", [*settings, "env.num_agents=1"], quick=True)
    assert [stage.name for stage in bench.stages] == STAGES
    assert bench.iteration.bare is not None
    assert bench.iteration.bare.seconds > 0
    assert all(seconds.low > 0 for seconds in bench.iteration.products.values())
    assert all(len(line) <= 80 for line in show_bench(bench))


def test_sizes_equal_those_of_the_plan(quick: Bench) -> None:
    planned = plan("grid", preset="debug").to_json()
    assert quick.sizes == {name: planned[name] for name in quick.sizes}


def test_result_is_text_json_and_a_picture(quick: Bench, tmp_path: Path) -> None:
    text = "\n".join(show_bench(quick))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(name in text for name in STAGES)
    tree = json.loads(json.dumps(quick.to_json()))
    assert tree["iteration"]["references"].keys() == tree["iteration"]["reference_ratios"].keys()
    assert tree["stages"][0]["of_iteration"] is not None
    draw_bench(quick, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_plan_estimates_times_from_stored_result(quick: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    debug = [f"{key}={value}" for key, value in debug_settings(load("grid").recipe).items()]
    assert store_for_plans(quick, debug) == tmp_path / "millpond" / "bench.json"
    planned = plan("grid", debug, measured=read_measured())
    phases = quick.iteration.phases
    expected = phases["collect"] + phases["advantage"] + phases["train"] + phases["other"]
    assert planned.to_json()["estimated_seconds"] == pytest.approx(expected)
    store_for_plans(quick, debug)
    assert len(read_measured()) == 1  # the newer replaces the older
