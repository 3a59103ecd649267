"""Collection: no step is wasted, mixed between agents or stale, and every row replays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from millpond.envs.registry import EnvBatchFactory
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.rollout.rows import Rows, resets
from millpond.rollout.schema import row_fields, state_shape
from millpond.vector import make_vector
from tests.support.collecting import HIDDEN, open_collector, planned
from tests.support.custom_envs import TEAM_ACTIONS, Teams
from tests.support.vector_envs import AGENT, ENV_STEPS, IDENTITY, CountingEnvs, counting_spec


def counting(agents: int) -> EnvSpec:
    return counting_spec(num_agents=agents, action=ActionSpec.discrete(5))


CASES = [
    # agents, unit, forward target, groups, rows
    (3, "env_steps", 21, 2, 32),  # 7 envs per group, 14 in total: 2 rounds and 4 rows
    (3, "agent_steps", 21, 2, 100),  # 42 agents: 2 rounds and 16 rows, 6 envs, 2 surplus
    (24, "env_steps", 72, 1, 8),  # 3 envs: 2 rounds and 2 rows
    (24, "agent_steps", 72, 1, 100),  # 72 agents: 1 round and 28 rows, 2 envs, 20 surplus
    (1, "agent_steps", 5, 1, 3),  # less than one round
    (2, "env_steps", 8, 2, 16),  # whole rounds
]


@pytest.mark.parametrize(("agents", "unit", "target", "groups", "rows"), CASES)
def test_every_step_is_in_exactly_one_row(agents: int, unit: str, target: int, groups: int, rows: int) -> None:
    horizon, iterations = 4, 5
    plan = planned(
        **{
            "env.num_agents": agents,
            "trainer.batch_unit": unit,
            "trainer.forward_pass_minibatch_target_size": target,
            "trainer.async_factor": groups,
            "trainer.bptt_horizon": horizon,
            "trainer.batch_size": rows * horizon,
            "trainer.minibatch_size": rows * horizon,
            "trainer.total_iterations": iterations,
        }
    )
    spec = counting(agents)
    make = partial(CountingEnvs, spec=spec)
    with make_vector(spec, make, num_envs=plan.num_envs, groups=groups, backend="inline") as vector:
        collector, _ = open_collector(plan, vector, core="none")
        vector.reset(3)
        seen: set[tuple[int, int, int]] = set()
        env_steps = kept_before = 0
        for iteration in range(iterations):
            collected = collector.collect()
            env_steps += collected.env_steps
            if iteration == 0:
                assert collected.env_steps == plan.env_steps
            trained = collector.rows["observation"][: plan.segments]  # [R, T, a, 8]
            who, step = trained[..., IDENTITY], trained[..., ENV_STEPS]
            assert bool((who == who[:, :1, :1]).all()), "a row holds one env"
            assert bool((trained[..., AGENT] == trained[:, :1, :, AGENT]).all()), "and each column one agent"
            assert bool((step == step[:, :1] + torch.arange(horizon)[None, :, None]).all()), "in order, without a gap"
            found = {
                (int(env), int(agent), int(at))
                for env, agent, at in trained[..., [IDENTITY, AGENT, ENV_STEPS]].flatten(0, 2)
            }
            assert len(found) == plan.agent_steps
            assert not found & seen, "a step is trained once"
            linked = np.flatnonzero(collector.rows.following >= 0)
            ends, begins = trained[linked, -1], trained[collector.rows.following[linked], 0]
            assert bool((ends[..., [IDENTITY, AGENT]] == begins[..., [IDENTITY, AGENT]]).all()), "links keep the agent"
            assert bool((ends[..., ENV_STEPS] + 1 == begins[..., ENV_STEPS]).all()), "and lead to its next step"
            last_steps = {(env, agent, at + 1) for env, agent, at in (tuple(map(int, one)) for one in
                          trained[:, -1][..., [IDENTITY, AGENT, ENV_STEPS]].flatten(0, 1))}  # fmt: skip
            assert len(linked) * trained.shape[2] == len(last_steps & found) or kept_before, "and none is missing"
            kept_before = collector.kept_rows
            seen |= found
            collector.finish()
        assert env_steps == plan.total_env_steps
        # Nothing was skipped: each agent's trained steps are its first ones, except surplus rows of the last iteration.
        kept = collector.kept_rows * horizon
        assert len(seen) == env_steps * agents - kept
        if not kept:
            steps_of = np.zeros((plan.num_envs, agents), int)
            for env, agent, _ in seen:
                steps_of[env, agent] += 1
            assert (steps_of == vector.env_steps[:, None]).all()


def test_top_up_rounds_rotate() -> None:
    plan = planned(
        **{
            "env.num_agents": 1,
            "trainer.forward_pass_minibatch_target_size": 5,
            "trainer.async_factor": 1,
            "trainer.bptt_horizon": 2,
            "trainer.batch_size": 2 * 7,
            "trainer.minibatch_size": 2 * 7,
        }
    )
    spec = counting(1)
    make = partial(CountingEnvs, spec=spec)
    with make_vector(spec, make, num_envs=5, groups=1, backend="inline") as vector:
        collector, _ = open_collector(plan, vector, core="none")
        vector.reset(3)
        topped = []
        for _ in range(5):
            collector.collect()
            topped.append(sorted(int(env) for env in collector.rows["observation"][5:7, 0, 0, IDENTITY]))
        assert topped == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]
        assert len(set(vector.env_steps.tolist())) == 1  # after a full rotation all envs have taken equally many steps


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("unit", ["env_steps", "agent_steps"])
@pytest.mark.parametrize(
    ("env_id", "puffer"),
    [("grid", False), ("grid", True), ("recall", False), *((f"teams with {acting}", False) for acting in TEAM_ACTIONS)],
)
def test_row_replays(core: str, unit: str, env_id: str, puffer: bool) -> None:
    """Unrolling from the stored state, with resets at episode ends, gives the log-probabilities and values of acting.

    Rows as PufferLib has them replay under their own rules: from zero, without resets.
    """
    agents = 1 if env_id == "recall" else 3
    options = {
        "num_agents": 3,
        "max_steps": 7,
        "width": 12,
        "height": 12,
        "walls": 4,
        "mines": 4,
        "generators": 2,
        "altars": 2,
    }
    factory = EnvBatchFactory(env_id, options if env_id == "grid" else {"min_delay": 2, "max_delay": 5})
    if env_id.startswith("teams"):  # agents with different spaces, padded and masked
        factory = EnvBatchFactory(f"{Teams.__module__}:Teams", {"kwargs": {"acting": env_id.split()[-1]}})
    env_batch = factory(1, None, 0)  # type: ignore[arg-type]
    plan = planned(
        **{
            "env.num_agents": agents,
            "trainer.batch_unit": unit,
            "trainer.forward_pass_minibatch_target_size": 4 * agents,
            "trainer.bptt_horizon": 16,
            "trainer.batch_size": 16 * 20,
            "trainer.minibatch_size": 16 * 20,
        }
    )
    with make_vector(env_batch.spec, factory, num_envs=plan.num_envs, groups=2, backend="inline") as vector:
        collector, policy = open_collector(plan, vector, core, puffer=puffer)
        vector.reset(5)
        for _ in range(2):  # the second starts in the middle of episodes
            waited = collector.kept_rows  # of the previous collection
            collector.collect()
            rows, everything = collector.rows, torch.arange(waited, plan.segments)
            names = ["observation", "action", "terminated", "truncated", "log_prob", "value"]
            names += ["action_mask"] if env_batch.spec.action_masks else []
            batch = rows.sequences(
                [*names, *(["initial_state"] if core != "none" else [])], everything, torch.device("cpu")
            )
            ended = batch["terminated"] | batch["truncated"]
            assert bool(ended.any()), "episodes end inside rows, or this shows little"
            state = batch.get("initial_state", torch.zeros(len(ended), 0, 0))
            assert not (puffer and bool(state.any()))
            reset = torch.zeros_like(ended) if puffer else resets(batch["terminated"], batch["truncated"])
            with torch.no_grad():
                again = policy.unroll(
                    batch["observation"], state, reset, batch["action"], action_mask=batch.get("action_mask")
                )
            torch.testing.assert_close(again.log_prob, batch["log_prob"], rtol=0, atol=1e-5)
            torch.testing.assert_close(again.value, batch["value"], rtol=0, atol=1e-5)
            collector.finish()
            with torch.no_grad():
                for parameter in policy.parameters():  # the next collection uses the updated policy
                    parameter.mul_(1.1)


def test_rows_take_the_bytes_of_the_plan() -> None:
    plan = planned(**{"trainer.batch_size": 64 * 256, "trainer.minibatch_size": 64 * 256, "policy.hidden_size": HIDDEN})
    factory = EnvBatchFactory("grid", {"num_agents": 3})
    env_batch = factory(1, None, 0)  # type: ignore[arg-type]
    rows = Rows(row_fields(env_batch.spec, state_shape("lstm", HIDDEN)), plan.buffer_rows, 64, 3, 3, "cpu")
    assert rows.nbytes == plan.buffer_bytes


def test_truncated_steps_are_valued_at_the_true_final_observation() -> None:
    """In `truncation` all steps are equal except for the clock, so the bootstrap must be the value before the reset."""
    factory = EnvBatchFactory("truncation", {"max_steps": 3})
    env_batch = factory(1, None, 0)  # type: ignore[arg-type]
    plan = planned(
        **{
            "env.num_agents": 1,
            "trainer.forward_pass_minibatch_target_size": 2,
            "trainer.async_factor": 1,
            "trainer.bptt_horizon": 8,
            "trainer.batch_size": 16,
            "trainer.minibatch_size": 16,
        }
    )
    with make_vector(env_batch.spec, factory, num_envs=2, groups=1, backend="inline") as vector:
        collector, policy = open_collector(plan, vector, "lstm")
        vector.reset(1)
        collector.collect()
        rows = collector.rows
        truncated = rows["truncated"][:2, :, 0]
        assert truncated.sum() >= 4
        assert not rows["terminated"].any()
        for row, t in truncated.nonzero():
            with torch.no_grad():
                state = policy.initial_state(1, "cpu")
                earlier = truncated[row, : int(t)].nonzero().flatten().tolist()
                for k in range(earlier[-1] + 1 if earlier else 0, int(t) + 1):
                    state = policy.act(rows["observation"][row, k], state, deterministic=True).state
                value = policy.value(
                    rows["observation"][row, int(t)], state
                )  # the environment always returns the same observation
            torch.testing.assert_close(rows["final_value"][row, t, 0], value[0], rtol=0, atol=1e-5)


def test_the_mean_reward_of_an_agent_does_not_move_while_it_is_not_alive() -> None:
    """A runner gets 1 per step and leaves after 3 of 5 steps; the two chasers get 2."""
    factory = EnvBatchFactory(f"{Teams.__module__}:Teams", {"kwargs": {"acting": "choices"}})
    env_batch = factory(1, None, 0)  # type: ignore[arg-type]
    plan = planned(
        **{
            "env.num_agents": 3,
            "trainer.forward_pass_minibatch_target_size": 12,
            "trainer.bptt_horizon": 16,
            "trainer.batch_size": 16 * 8,
            "trainer.minibatch_size": 16 * 8,
        }
    )
    with make_vector(env_batch.spec, factory, num_envs=plan.num_envs, groups=2, backend="inline") as vector:
        collector, _ = open_collector(plan, vector, baseline=True)
        collector.reward_centering = 0.25
        vector.reset(5)
        collector.collect()
        rows = collector.rows
        alive, baseline = rows["alive"].numpy(), rows["reward_baseline"].numpy()
        assert 0 < (~alive[..., 0]).sum() < alive[..., 0].size
        before = np.cumsum(alive[0], 0) - alive[0]  # steps that each agent has taken before each step
        np.testing.assert_allclose(baseline[0], np.array([1.0, 2.0, 2.0]) * (1 - 0.75**before), rtol=1e-5)
        saved = collector.state_dict()
        mean = collector.average_reward.copy()
        collector.average_reward[...] = 0
        collector.load_state_dict(saved)
        np.testing.assert_array_equal(collector.average_reward, mean)


def test_rows_of_another_layout_are_an_error_unless_there_are_none() -> None:
    def rows(bytes_seen: int) -> Rows:
        spec = EnvSpec("test", ObservationSpec.single((bytes_seen,), "uint8", "vector"), ActionSpec.discrete(2))
        return Rows(row_fields(spec, state_shape("none", HIDDEN)), 3, 4, 1, 1, "cpu")

    padded, unpadded = rows(8), rows(7)
    padded.load_state_dict(unpadded.state_dict(0))
    with pytest.raises(MillpondError, match=r"with observation of shape \(4, 1, 7\); here it is \(4, 1, 8\)"):
        padded.load_state_dict(unpadded.state_dict(2))
