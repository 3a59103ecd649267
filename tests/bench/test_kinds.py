"""Quick benches of mixtures and reward learning: every stage is measured, scaled to the plan, shown and stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millpond.bench.measure import Effort
from millpond.bench.mixture import measured_rounds, mixture_settings
from millpond.bench.run import Bench, run_bench, store_for_plans
from millpond.bench.show import draw_bench, show_bench, waterfall
from millpond.config import load
from millpond.config.debug import debug_settings
from millpond.planner import MixturePlan, plan
from millpond.planner.estimate import read_measured

LAKE = ["lake append", "lake sample"]
STAGES = {
    "mixture": ["envs", "collect", "pour", "learn", "fill", "BigAgent", *LAKE],
    "reward": ["sample", "update", "target", "record"],
    "reward-online": ["act", "sample", "update", "target", "agent update", "record"],
}


COMPUTING = {  # phases in which networks compute
    "mixture": ["collect", "learn", "train_big"],
    "reward": ["train"],
    "reward-online": ["act", "train"],
}


@pytest.fixture(scope="module", params=list(STAGES))
def quick(request: pytest.FixtureRequest) -> Bench:
    return run_bench(request.param, quick=True)


def debug(recipe: str) -> list[str]:
    return [f"{key}={value}" for key, value in debug_settings(load(recipe).recipe).items()]


def test_every_stage_is_measured(quick: Bench) -> None:
    assert [stage.name for stage in quick.stages] == STAGES[quick.recipe]
    for stage in quick.stages:
        assert stage.alone > 0
        assert stage.limit == "" or (stage.at_best is not None and stage.at_best > 0), stage.name
        assert (quick.of_iteration(stage) is None) == (stage.name in LAKE)


def test_phases_are_shown_beside_their_products_alone(quick: Bench) -> None:
    assert list(quick.iteration.products) == COMPUTING[quick.recipe]
    assert all(seconds.low > 0 for seconds in quick.iteration.products.values())
    text = "\n".join(show_bench(quick))
    assert "Against the products of the networks alone\n" in text
    total = sum(seconds.median for seconds in quick.iteration.products.values())
    assert f"{quick.iteration.seconds.median / total:.2f}\n" in text


def test_phases_add_up_to_the_round_or_cycle(quick: Bench) -> None:
    assert waterfall(quick)[-1][2] == pytest.approx(quick.iteration.seconds.median)


def test_result_is_text_json_and_a_picture(quick: Bench, tmp_path: Path) -> None:
    text = "\n".join(show_bench(quick))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert f"One {'round' if quick.kind == 'mixture' else 'cycle'}\n" in text
    tree = json.loads(json.dumps(quick.to_json()))
    assert [stage["name"] for stage in tree["stages"]] == STAGES[quick.recipe]
    draw_bench(quick, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_plan_estimates_times_from_stored_result(quick: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The debug preset is one round or one cycle, as long as the measured one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = debug(quick.recipe)
    store_for_plans(quick, settings)
    planned = plan(quick.recipe, settings, measured=read_measured()).to_json()
    assert planned["estimated_seconds"] == pytest.approx(sum(quick.iteration.phases.values()))


def test_matrix_products_of_a_reward_batch_are_counted() -> None:
    """Pendulum: 3 numbers before and after and one action; two layers of 256; a batch of 256 steps."""
    bench = run_bench("reward", quick=True)
    assert bench.limits is not None
    update = next(stage for stage in bench.stages if stage.name == "update")
    forward = 2 * 256 * (7 * 256 + 256 * 256 + 256)
    assert update.at_best == pytest.approx(3 * forward / bench.limits.float32)


def test_matrix_products_of_an_agent_update_are_counted() -> None:
    """SAC on Pendulum, layers of 256: targets, critics, actor; then the predicted rewards."""
    bench = run_bench("reward-online", quick=True)
    batch = debug_settings(load("reward-online").recipe)["agent.batch_size"]
    assert bench.limits is not None
    update = next(stage for stage in bench.stages if stage.name == "agent update")
    first, rest = 3 * 256, 256 * 256 + 256 * 2
    actor, actor_training = first + rest, 2 * first + 3 * rest
    first, rest = 4 * 256, 256 * 256 + 256
    critics, critics_training, critics_inputs = 2 * (first + rest), 2 * (2 * first + 3 * rest), 4 * (first + rest)
    predicted = 7 * 256 + 256 * 256 + 256
    products = actor + critics + critics_training + actor_training + critics_inputs + predicted
    assert update.at_best == pytest.approx(2 * batch * products / bench.limits.float32)


@pytest.mark.parametrize("learn_from", ["predicted", "world"])
def test_dqn_as_the_agent_of_reward_learning_is_measured(learn_from: str) -> None:
    settings = {"env.id": "gymnasium:CartPole-v1", "agent.algorithm": "dqn", "agent.learn_from": learn_from}
    bench = run_bench("reward-online", settings, quick=True)
    assert [stage.name for stage in bench.stages] == STAGES["reward-online"]
    assert all(seconds.low > 0 for seconds in bench.iteration.products.values())


def test_shortened_round_is_scaled_up() -> None:
    """4 of 16 collections, 128 of 4,096 updates, 65,536 of 131,072 transitions drawn; the first round is a warm-up.

    The measurements after the first round took half a second, which are not part of the second.
    """
    full, short = plan("mixture").plan, plan("mixture", mixture_settings(load("mixture"), Effort())).plan
    assert isinstance(full, MixturePlan)
    assert isinstance(short, MixturePlan)
    collecting = {"time/collect": 1.0, "time/pour": 0.5, "time/learn": 2.0, "time/evaluate": 0.25}
    training = {"time/fill": 0.5, "time/train_big": 3.0, "big/pond_transitions": 65_536.0}
    records: list[dict[str, float]] = []
    for each in [*[{**collecting, "passes": 4.0}] * 4, {**training, "passes": 4.0}] * 2:
        passed = records[-1]["seconds"] if records else 0.0
        records.append({**each, "seconds": passed + each["passes"]})
    iteration = measured_rounds(records, full, short, live=False, spent_between=[0.5, 7.0])
    other = (5 * 4.0 - 0.5 - 4 * (1.0 + 0.5 + 2.0 + 0.25) - 0.5 - 3.0) * 4
    expected = {"collect": 16.0, "pour": 8.0, "learn": 32.0, "fill": 1.0, "train_big": 96.0, "other": other}
    assert iteration.phases == pytest.approx(expected)
    assert iteration.seconds.median == pytest.approx(sum(expected.values()))
    assert iteration.seconds.count == 1


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"mixture.mode": "single", "mixture.agents": 1}, {"pour", "fill", "BigAgent"}),
        (
            {"mixture.mode": "live", "mixture.own_fraction": 0.5, "mixture.big_pond_transitions": 4_096},
            {"pour", "fill"},
        ),
    ],
)
def test_stages_of_other_mixture_modes(settings: dict[str, Any], missing: set[str]) -> None:
    bench = run_bench("mixture", settings, quick=True)
    assert [stage.name for stage in bench.stages] == [name for name in STAGES["mixture"] if name not in missing]
    assert all(len(line) <= 80 for line in show_bench(bench))


@pytest.mark.parametrize("recipe", ["mixture", "mixture-gravitar", "mixture-seed"])
def test_shortened_round_has_the_same_envs_and_batch_sizes(recipe: str) -> None:
    """Envs, minibatches and batches keep their sizes; there are only fewer of them."""
    full = plan(recipe).plan
    short = plan(recipe, mixture_settings(load(recipe), Effort())).plan
    assert isinstance(full, MixturePlan)
    assert isinstance(short, MixturePlan)
    for name in ("envs_per_agent", "agents", "minibatch_transitions", "pqn_replay_ratio", "big_batch_size"):
        assert getattr(short, name) == getattr(full, name)
    assert (short.collections_per_round, short.rounds, short.last_round_collections) == (4, 4, 0)
    assert short.big_updates == min(128, full.big_updates)
    assert short.env_steps_per_collection * (short.observation_bytes or 0) <= 64 << 20
