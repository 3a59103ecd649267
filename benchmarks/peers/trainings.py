"""The trainings that are compared: the peer's environment and scripts, the default length, and the words for results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Training:
    """`scripts`: each with arguments that come before iterations and seed; every one is a party of its own."""

    peer: str  # whose virtual environment runs the scripts
    scripts: tuple[tuple[str, ...], ...]
    iterations: int
    unit: str = "env steps/s"
    level: str = "episode return"


TRAININGS = {
    "forage": Training("puffer", (("puffer_forage.py",),), 244, "agent steps/s", "reward per agent step"),
    "cartpole": Training("sb3", (("recurrent_ppo_cartpole.py",), ("single_file_cartpole.py",)), 30, "agent steps/s"),
    "cartpole-mlp": Training("sb3", (("sb3_ppo.py", "cartpole-mlp"),), 150),
    "halfcheetah": Training("sb3", (("sb3_ppo.py", "halfcheetah"),), 60),
    "pong": Training("sb3", (("sb3_ppo.py", "pong"),), 12),
    "sac-pendulum": Training("sb3", (("sb3_off_policy.py", "sac-pendulum"), ("single_file_sac.py",)), 20),
    "dqn-minatar": Training("sb3", (("sb3_off_policy.py", "dqn-minatar"), ("single_file_dqn.py",)), 20),
}
