"""Plans of mixtures: reference numbers, and frames that add up exactly."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.planner import MixturePlan, plan
from millpond.planner.planned import show


def mixture(recipe: str, overrides: dict[str, Any] | None = None) -> MixturePlan:
    numbers = plan(recipe, overrides or {}).plan
    assert isinstance(numbers, MixturePlan)
    return numbers


def test_the_numbers_of_the_original_mixture() -> None:
    numbers = mixture("mixture-seed")
    assert (numbers.agents, numbers.collections_per_round, numbers.big_updates, numbers.total_frames) == (
        4,
        500,
        100,
        100_000_000,
    )
    assert numbers.transitions_per_collection == 4_096
    assert numbers.env_steps_per_round == 8_192_000
    assert round(numbers.big_replay_ratio, 4) == 0.0004
    # 100M // (4 agents x 4,096 transitions x 4 frames) = 1,525 collections = 3 whole rounds and 25
    assert (numbers.collections, numbers.whole_rounds, numbers.last_round_collections, numbers.rounds) == (
        1_525,
        3,
        25,
        4,
    )
    assert numbers.frames == 1_525 * 65_536
    assert numbers.frames + numbers.unused_frames == 100_000_000
    assert numbers.frames_per_agent * 4 == numbers.frames


def test_bytes_per_transition() -> None:
    numbers = mixture("mixture-seed")
    assert numbers.transition_bytes_twice == 2 * 3 * 84 * 84 == 42_336
    assert numbers.transition_bytes_once == 7_056
    assert "A million transitions: 42.3 GB in full" in show(plan("mixture-seed"))
    large = mixture("mixture-seed", {"env.atari.screen_size": 256})
    assert large.transition_bytes_twice == 2 * 3 * 256 * 256
    assert 9 < large.transition_bytes_twice / 42_336 < 10  # about ten times


def test_states_of_agents_with_memory_are_counted() -> None:
    text = show(plan("mixture-recall"))
    assert re.search(r"the agent's state +512  lstm, stored with every step", text)
    with_memory, without = mixture("mixture-recall"), mixture("mixture-recall", {"policy.core": "none"})
    assert with_memory.pond_bytes is not None
    assert without.pond_bytes is not None
    assert with_memory.pond_bytes - without.pond_bytes == with_memory.pond_rows * 512


def test_the_numbers_of_a_round() -> None:
    """Gravitar: 4 agents x 128 envs x 32 steps, 250 collections, ponds of 65,536, 64,000 updates of 32."""
    numbers = mixture("mixture-gravitar")
    assert numbers.pqn_updates_per_collection == 32 * 2
    assert numbers.pqn_updates_per_round == 64 * 250
    assert numbers.pqn_replay_ratio == 2
    assert numbers.minibatch_transitions == 128
    assert numbers.collections_per_pour == 8  # 65,536 records; each of 4,096 steps may add a final observation
    assert numbers.pours_per_round == 32  # 250 / 8, the last one of 2
    assert numbers.big_pond_replay_ratio == 64_000 * 32 / 500_000
    assert numbers.big_replay_ratio == 64_000 * 32 / (4 * 4_096 * 250)
    assert numbers.big_updates_in_all == numbers.rounds * 64_000


def test_bytes_of_ponds_and_bigpond() -> None:
    """A pond holds consecutive steps, so each frame once; the BigPond holds a stack and n-step frames per transition."""
    numbers = mixture("mixture-gravitar")
    row = 7_056 + 4 + 33  # frame, action, provenance with reward and flags
    assert numbers.pond_bytes == 65_536 * row
    assert numbers.big_pond_bytes == 500_000 * (4 + 3) * row
    assert numbers.lake_bytes == numbers.lake_transitions * (
        640 + 8 + 48 + 4
    )  # lz4, its header; record with the action


def test_bytes_of_the_lake() -> None:
    numbers = mixture("mixture-seed")
    assert (numbers.lake_frame_bytes, numbers.lake_frame_measured) == (640, True)
    assert numbers.lake_transitions == numbers.frames // 4
    other = mixture("mixture-seed", {"env.id": "atari:breakout"})
    assert (other.lake_frame_bytes, other.lake_frame_measured) == (7_056, False)
    told = mixture("mixture-seed", {"lake.expected_frame_bytes": 100})
    assert told.lake_frame_bytes == 100


def test_the_numbers_of_each_mode() -> None:
    single = mixture("mixture", {"mixture.mode": "single", "mixture.agents": 1})
    assert (single.resets, single.big_updates, single.lake_transitions) == (0, 0, 0)
    assert single.frames == single.frames_per_agent == 1_048_576
    assert mixture("mixture", {"mixture.mode": "no-resets"}).resets == 0
    assert mixture("mixture", {"mixture.mode": "single-resets", "mixture.agents": 1}).resets > 0
    live = mixture("mixture", {"mixture.mode": "live", "mixture.own_fraction": 0.2})
    assert live.own_envs == 128
    assert live.env_steps_per_collection == 5 * 4_096
    assert live.own_envs * 32 / live.env_steps_per_collection == 0.2


def test_total_iterations_limits_the_rounds() -> None:
    numbers = mixture("mixture-seed", {"trainer.total_iterations": 2})
    assert (numbers.rounds, numbers.collections) == (2, 1_000)


@given(
    agents=st.integers(2, 8),
    envs=st.integers(1, 64),
    steps=st.integers(1, 64),
    collections=st.integers(1, 50),
    frames=st.integers(10**5, 10**8),
)
def test_any_mixture_is_consistent(agents: int, envs: int, steps: int, collections: int, frames: int) -> None:
    numbers = mixture(
        "mixture-gravitar",
        {
            "mixture.agents": agents,
            "pqn.num_envs": envs,
            "pqn.num_steps": steps,
            "pqn.num_minibatches": 1,
            "mixture.collections_per_round": collections,
            "mixture.total_frames": max(frames, agents * envs * steps * 4),
        },
    )
    assert numbers.frames + numbers.unused_frames == numbers.total_frames
    assert numbers.unused_frames < numbers.frames_per_collection
    assert numbers.whole_rounds * collections + numbers.last_round_collections == numbers.collections
    assert numbers.frames_per_agent * agents == numbers.frames
    assert numbers.rounds == -(-numbers.collections // collections)


@pytest.mark.parametrize("mode", ["rounds", "live", "single", "single-resets", "no-resets"])
def test_the_text_of_every_mode_fits_the_page(mode: str) -> None:
    settings = {"mixture.mode": mode, "mixture.agents": 1 if mode.startswith("single") else 4}
    text = show(plan("mixture-gravitar", {**settings, "mixture.own_fraction": 0.2 if mode == "live" else 0}))
    assert all(len(line) <= 80 for line in text.splitlines())
