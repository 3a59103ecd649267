"""Envs that restart after their worker died: their unfinished steps are dropped and counted, all others replay."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

from millpond.envs.registry import EnvBatchFactory
from millpond.rollout.collector import Collector
from millpond.rollout.rows import resets
from millpond.vector import make_vector
from tests.support.collecting import open_collector, planned

HORIZON, ENVS = 16, 8
OF_WORKER_1 = [2, 3, 6, 7]


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "env.num_agents": 1,
        "trainer.num_workers": 2,
        "trainer.batch_unit": "agent_steps",
        "trainer.forward_pass_minibatch_target_size": ENVS // 2,
        "trainer.bptt_horizon": HORIZON,
        "trainer.batch_size": HORIZON * ENVS,
        "trainer.minibatch_size": HORIZON * ENVS,
        **changes,
    }


def replay(collector: Collector, policy: Any, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return alive [R, T] and the differences of log-probabilities and values between unrolling and acting."""
    names = ["observation", "action", "terminated", "truncated", "log_prob", "value", "alive", "initial_state"]
    batch = collector.rows.sequences(names, torch.arange(num_rows), torch.device("cpu"))
    with torch.no_grad():
        again = policy.unroll(
            batch["observation"],
            batch["initial_state"],
            resets(batch["terminated"], batch["truncated"]),
            batch["action"],
        )
    return batch["alive"], (again.log_prob - batch["log_prob"]).abs(), (again.value - batch["value"]).abs()


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_rows_replay_from_after_the_restart(core: str) -> None:
    plan = planned(**settings(), **{"policy.core": core})
    factory = EnvBatchFactory(
        "recall", {"min_delay": 30, "max_delay": 40}
    )  # episodes so long that none ends at the restart
    spec = factory(1, None, 0).spec  # type: ignore[arg-type]
    with make_vector(
        spec, factory, num_envs=ENVS, groups=2, num_workers=2, backend="processes", on_crash="restart"
    ) as vector:
        collector, policy = open_collector(plan, vector, core)
        acts, actor = iter(range(10_000)), collector.actor

        class Killer:
            """The collector's actor, which kills a worker at its eleventh batch."""

            def __getattr__(self, name: str) -> Any:
                return getattr(actor, name)

            def act(self, *arguments: Any) -> Any:
                if next(acts) == 10:
                    os.kill(vector.pids[1], signal.SIGKILL)
                return actor.act(*arguments)

        vector.reset(3)
        collector.actor = Killer()  # type: ignore[assignment]
        collected = collector.collect()
        assert vector.restarts.tolist() == [int(env in OF_WORKER_1) for env in range(ENVS)]
        assert collected.agent_steps == HORIZON * ENVS
        alive, log_probs, values = replay(collector, policy, plan.segments)
        assert collected.dropped_agent_steps == int((~alive).sum()) > 0
        for env in range(ENVS):
            lost = int((~alive[env]).sum())
            assert (lost > 0) == (env in OF_WORKER_1)
            assert lost < HORIZON
            assert not bool(alive[env, :lost].any()), "what led to the crash is dropped, and what follows is not"
            assert bool(alive[env, lost:].all())
        assert float(log_probs[alive].max()) < 1e-5
        assert float(values[alive].max()) < 1e-5


def test_recurrent_state_is_reset_for_an_env_that_restarted_between_rows() -> None:
    """A worker dies between rounds. A top-up round with some of its envs notices; the others are reported later."""
    plan = planned(**settings(**{"trainer.batch_size": HORIZON * 12, "trainer.minibatch_size": HORIZON * 12}))
    factory = EnvBatchFactory("recall", {"min_delay": 200, "max_delay": 400})
    spec = factory(1, None, 0).spec  # type: ignore[arg-type]
    with make_vector(
        spec, factory, num_envs=ENVS, groups=2, num_workers=2, backend="processes", on_crash="restart"
    ) as vector:
        collector, _ = open_collector(plan, vector, "lstm")
        vector.reset(3)
        collector.collect()  # a round of 8 and a top-up round of the envs 0 to 3
        collector.finish()
        os.kill(vector.pids[1], signal.SIGKILL)
        collected = collector.collect()
        assert collected.dropped_agent_steps == 4  # one step of each lost env
        part = vector.slice(4, 4)  # envs 6 and 7 are lost again; 2 and 3 too, but they are not in the slice
        os.kill(vector.pids[1], signal.SIGKILL)
        part.recv()
        part.send([[0]] * 4)
        assert part.recv().restarted.tolist() == [False, False, True, True]
        part.end_round()
        assert bool(collector.state[2:4].any())
        collector.finish()
        collected = collector.collect()
        assert collected.dropped_agent_steps == 0
        first_rows = collector.rows["initial_state"][:ENVS]
        assert not bool(first_rows[2:4].any()), "a new episode begins without memory"
        assert bool(first_rows[:2].any())
        assert bool(first_rows[4:6].any())
