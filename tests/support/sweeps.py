"""Settings and records of small sweeps."""

from __future__ import annotations

from typing import Any

from millpond.sweep.folder import Rung, SweepSettings, TrialRecord
from millpond.sweep.trial import complete

SMALL = {
    "trainer.num_envs": 4,
    "trainer.batch_size": 128,
    "trainer.bptt_horizon": 8,
    "trainer.minibatch_size": 64,
    "trainer.update_epochs": 1,
    "trainer.total_timesteps": 1024,
    "policy.hidden_size": 16,
    "eval.episodes": 2,
    "env.max_steps": 30,
}
SPACE: dict[str, Any] = {"ppo.learning_rate": {"log": [1e-4, 1e-2]}, "trainer.update_epochs": {"choices": [1, 2]}}


def settings(**changes: Any) -> SweepSettings:
    fields: dict[str, Any] = {
        "recipe": "gymnasium:CartPole-v1",
        "overrides": {key: value for key, value in SMALL.items() if key != "trainer.update_epochs"},
        "space": SPACE,
        "trials": 3,
        "seeds": 2,
        "final_seeds": 2,
        "hours": None,
        "objectives": ("return",),
        "minimize": False,
        "sampler": "tpe",
        "rungs": (0.5, 1.0),
        "random_seed": 0,
    }
    return SweepSettings(**{**fields, **changes})


def record(
    number: int, scores: list[float], *, fraction: float = 1.0, state: Any = "finished", **fields: Any
) -> TrialRecord:
    """Return a trial with these scores of its seeds at one rung."""
    rung = complete(Rung(fraction, {str(seed): score for seed, score in enumerate(scores, start=1)}))
    return TrialRecord(number, {"ppo.learning_rate": 0.001 * (number + 1)}, state, rungs=(rung,), **fields)
