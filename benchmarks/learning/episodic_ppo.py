"""PPO on Pendulum with its return only at the end of an episode: with rewards learned beside the policy, and without.

    python benchmarks/learning/episodic_ppo.py [--seeds 1 2 3] [--steps 245760]

Same env, network, updates and env steps (`pendulum.yaml`); printed are returns of 100 evaluation episodes per seed. A player
at random gets -1,208.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer

RECIPE = Path(__file__).with_name("pendulum.yaml")
EPISODIC = {"env.episodic": True, "ppo.normalize_values": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "return at the end": {**EPISODIC},
    "return at the end, gamma 0.99": {**EPISODIC, "ppo.gamma": 0.99},
    "return at the end, reward model": {**EPISODIC, "ppo.reward_model": "online", "reward_model.updates": 50},
    "reward of each step": {"ppo.normalize_values": True},
}


def score(name: str, seed: int, steps: int, folder: str | Path) -> float:
    """Train, and return the mean return of the evaluation at the end."""
    sizes = {"trainer.total_timesteps": steps, "eval.interval": None, "log.console_seconds": 1e6}
    loaded = load(RECIPE, {**sizes, **SETTINGS[name], "seed": seed, "run_dir": str(folder)})
    trainer = PPOTrainer(loaded, start_run(loaded, f"{list(SETTINGS).index(name)}-{seed}"))
    try:
        trainer.train()
    finally:
        trainer.close()
    assert trainer.final_evaluation is not None
    return trainer.final_evaluation.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=245_760)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in SETTINGS:
            scores = [score(name, seed, options.steps, folder) for seed in options.seeds]
            print(f"{name:<32} {' '.join(f'{one:8.0f}' for one in scores)}", flush=True)


if __name__ == "__main__":
    main()
