"""Shares of ranks add up to the total and satisfy the rules; sizes that do not divide are refused with a fix."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.config import ConfigError, PPORecipe, load
from millpond.config.check import flatten, written
from millpond.config.rules import violations
from millpond.errors import MillpondError
from millpond.planner import MixturePlan, PPOPlan, plan_loaded
from millpond.planner.planned import plan_over_ranks, share_of_rank

NO_SHARE = "is a total that 2 ranks cannot share equally"


def plans(recipe: str, changes: dict[str, Any], ranks: int) -> tuple[PPOPlan, PPOPlan, PPOPlan]:
    """Plans of one process, of all ranks together, and of one rank."""
    loaded = load(recipe, changes)
    numbers = (
        plan_loaded(loaded).plan,
        plan_over_ranks(loaded, ranks).plan,
        plan_loaded(share_of_rank(loaded, ranks)).plan,
    )
    assert all(isinstance(plan, PPOPlan) for plan in numbers)
    return numbers  # type: ignore[return-value]


def test_metta_on_two_ranks() -> None:
    alone, both, share = plans("metta", {}, 2)
    assert (share.num_envs, share.segments, share.minibatch_segments, share.num_workers) == (1360, 4096, 128, 8)
    assert (share.num_minibatches, share.iterations, share.top_up_rows) == (32, 19073, 16)
    same = {"field_bytes": alone.field_bytes, "training": alone.training}
    assert replace(both, **same) == alone
    assert share_of_rank(load("metta"), 1) == load("metta")


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """Ranks, and sizes that they can share."""
    ranks, groups = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    workers, horizon = ranks * draw(st.integers(1, 3)), draw(st.integers(1, 9))
    rows, minibatches = ranks * draw(st.integers(1, 6)), draw(st.integers(1, 5))
    batch = rows * minibatches * horizon
    return ranks, {
        "env.num_agents": draw(st.integers(1, 5)),
        "trainer.num_workers": workers,
        "trainer.async_factor": groups,
        "trainer.num_envs": lcm(workers, groups * ranks) * draw(st.integers(1, 3)),
        "trainer.batch_unit": draw(st.sampled_from(["env_steps", "agent_steps"])),
        "trainer.bptt_horizon": horizon,
        "trainer.batch_size": batch,
        "trainer.minibatch_size": rows * horizon,
        "trainer.max_minibatch_size": draw(st.sampled_from([None, ranks * horizon])),
        "trainer.total_timesteps": batch * draw(st.integers(1, 7)) + draw(st.integers(0, 5)),
    }


@settings(max_examples=40)
@given(sizes())
def test_shares_of_ranks_add_up_to_the_total(drawn: tuple[int, dict[str, Any]]) -> None:
    ranks, changes = drawn
    alone, both, share = plans("grid", changes, ranks)
    recipe = share_of_rank(load("grid", changes), ranks).recipe
    assert isinstance(recipe, PPORecipe)
    assert violations(flatten(recipe), written(recipe)) == []
    for name in ("num_envs", "batch_size", "segments", "minibatch_segments", "agent_steps", "rows_per_round"):
        assert getattr(both, name) == getattr(alone, name) == getattr(share, name) * ranks
    for name in ("iterations", "num_minibatches", "gradient_updates", "bptt_horizon", "accumulated_parts", "groups"):
        assert getattr(both, name) == getattr(alone, name) == getattr(share, name)
    assert both.unused_timesteps == alone.unused_timesteps
    # Each rank rounds its own top-up round up to whole envs.
    assert 0 <= both.env_steps - alone.env_steps < ranks * alone.bptt_horizon
    assert both.env_steps == share.env_steps * ranks


@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 6), st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_sizes_that_ranks_cannot_share_are_refused_with_a_fix(
    ranks: int, workers: int, groups: int, minibatches: int, rows: int, parts: bool
) -> None:
    changes: dict[str, Any] = {
        "trainer.num_workers": workers,
        "trainer.async_factor": groups,
        "trainer.num_envs": lcm(workers, groups),
        "trainer.bptt_horizon": 4,
        "trainer.minibatch_size": rows * 4,
        "trainer.max_minibatch_size": 4 if parts else None,
        "trainer.batch_size": minibatches * rows * 4,
    }
    error = refusal(changes, ranks)
    if error is None:
        return
    alone = error.violations[0].fixes if len(error.violations) == 1 else ()
    for fix in (*alone, error.fix):  # each is enough
        assert fix
        assert refusal({**changes, **fix}, ranks) is None


def refusal(changes: dict[str, Any], ranks: int) -> ConfigError | None:
    loaded = load("grid", changes)
    try:
        share_of_rank(loaded, ranks)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("trainer.num_workers=1", f"1 {NO_SHARE}; try trainer.num_workers=2"),
        ("trainer.num_envs=6", "6 does not give each of 2 ranks .* equal groups; try trainer.num_envs=4 or 8"),
        ("trainer.batch_size=16_448", f"16,448 {NO_SHARE} in whole rows of trainer.bptt_horizon=64 steps; try "),
        ("trainer.minibatch_size=64", f"64 {NO_SHARE} in whole rows .* try trainer.minibatch_size=128"),
        ("trainer.max_minibatch_size=64", f"64 {NO_SHARE} in whole rows .* try trainer.max_minibatch_size=128"),
        ("vector.threads=3", f"3 {NO_SHARE}; try vector.threads=2 or 4"),
        ("device=cuda:1", "cuda:1 is one device for 2 ranks.* try device=cuda"),
    ],
)
def test_a_size_that_does_not_divide_is_refused(change: str, words: str) -> None:
    rows = ["trainer.minibatch_size=64"] if "batch_size=16" in change else []
    with pytest.raises(ConfigError, match=f"{change.partition('=')[0]}={words}"):
        share_of_rank(load("grid", [change, *rows]), 2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_mixture_has_the_same_plan_on_any_ranks(ranks: int) -> None:
    loaded = load("mixture")
    assert share_of_rank(loaded, ranks) == loaded  # sizes of an agent do not depend on the ranks
    alone, together = plan_loaded(loaded).plan, plan_over_ranks(loaded, ranks).plan
    assert isinstance(alone, MixturePlan)
    assert alone.big_pond_bytes is not None
    assert together == replace(alone, big_pond_bytes=ranks * alone.big_pond_bytes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            [],
            "mixture.agents=4, which 3 ranks .*one rank per agent, or 2 ranks: torchrun --nproc-per-node=4 -m -- millpond",
        ),
        (
            ["mixture.agents=5"],
            "which 3 ranks .*one rank per agent: torchrun --nproc-per-node=5 -m -- millpond",
        ),
        (["mixture.agents=3"], f"dqn.batch_size=128 {NO_SHARE.replace('2', '3')}; try dqn.batch_size=129 or 126"),
        (["mixture.agents=3", "dqn.batch_size=3", "device=cuda:1"], "cuda:1 is one device for 3 ranks"),
        (
            ["mixture.mode=single", "mixture.agents=1"],
            "mixture.mode=single trains one agent.* start it without torchrun",
        ),
        (["mixture.mode=single-resets", "mixture.agents=1"], "mixture.mode=single-resets .* start it without torchrun"),
    ],
)
def test_mixtures_that_ranks_cannot_share_are_refused(changes: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        share_of_rank(load("mixture", changes), 3)


def test_other_kinds_train_in_one_process() -> None:
    with pytest.raises(MillpondError, match="kind reward, which trains in one process; start it without torchrun"):
        share_of_rank(load("reward"), 2)
