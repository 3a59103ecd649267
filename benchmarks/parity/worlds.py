"""The worlds of the comparison with PufferLib's own trainer, and the settings that both sides are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

PUFFER = "pufferlib"  # PufferLib's own trainer
BASE = "puffer"  # Millpond with ppo.style=puffer

# Millpond with one difference at a time to PufferLib's algorithm, and with all of them: overrides of ppo.style=puffer.
VARIANTS: dict[str, tuple[str, list[str]]] = {
    BASE: ("Millpond, `ppo.style=puffer`", []),
    "once": ("advantages once per iteration", ["ppo.recompute_advantage=false"]),
    "row-end": ("row end bootstraps", ["ppo.advantage=vtrace", "ppo.row_end=bootstrap"]),
    "truncation": ("truncation bootstraps", ["ppo.advantage=vtrace", "ppo.ignore_truncation=false"]),
    "memory": ("stored state, reset at episode ends", ["ppo.row_state=stored", "ppo.reset_state=true"]),
    "uniform": ("every row once per epoch", ["ppo.sampling=uniform", "ppo.prio_alpha=0"]),
    "weights": ("weights on the value loss too, exponent to 1", ["ppo.prio_weights=loss", "ppo.prio_beta_end=one"]),
    "normalised": ("normalised over the iteration", ["ppo.normalize_advantage=iteration"]),
    "millpond": ("all of these, `ppo.style=millpond`", ["ppo.style=millpond"]),
}


# PufferLib's network for bytes, as a plain network of Millpond: both sides then have it.
BYTES = "benchmarks.parity.bytes_network:BytesNetwork"


@dataclass(frozen=True)
class World:
    """A task, its sizes and its hyper-parameters, under the names that both trainers share."""

    name: str
    env: dict[str, Any]  # overrides of Millpond's config
    agents: int  # per env
    num_envs: int
    horizon: int
    minibatches: int
    update_epochs: int
    iterations: int
    hidden_size: int
    level: str  # metric of Millpond's records, which is what curves show
    unit: str
    numbers: dict[str, float]
    variants: tuple[str, ...]  # what Millpond runs
    optimizer: str = "adam"
    network: str | None = None  # a plain network in place of Millpond's encoder
    about: str = ""

    @property
    def batch(self) -> int:
        return self.num_envs * self.agents * self.horizon


# The numbers of the recipe puffer-metta but for the optimizer.
METTA = {
    "gamma": 0.977, "gae_lambda": 0.916, "clip_coef": 0.1, "vf_clip_coef": 0.1, "vf_coef": 0.44, "ent_coef": 0.0021,
    "max_grad_norm": 0.5, "prio_alpha": 0.8, "prio_beta0": 0.2, "adam_beta2": 0.999,
}  # fmt: skip
FORAGE = World(
    "forage",
    {"env.id": "mettagrid", "env.num_agents": 3, "env.max_steps": 1_000, "env.obs_size": 11},
    agents=3,
    num_envs=64,
    horizon=64,
    minibatches=4,
    update_epochs=1,
    iterations=60,
    hidden_size=128,
    level="reward_per_agent_step",
    unit="reward per agent step",
    numbers={**METTA, "learning_rate": 1e-3, "adam_eps": 1e-12, "adam_beta1": 0.9},
    variants=tuple(VARIANTS),
    about="Adam",
)
WORLDS = {
    "cartpole": World(
        "cartpole",
        {"env.id": "gymnasium:CartPole-v1"},
        agents=1,
        num_envs=64,
        horizon=32,
        minibatches=4,
        update_epochs=4,
        iterations=70,
        hidden_size=64,
        level="episode_return",
        unit="return of training episodes",
        numbers={
            "learning_rate": 3e-3, "gamma": 0.95, "gae_lambda": 0.95, "clip_coef": 0.2, "vf_clip_coef": 0.2, "vf_coef": 0.5,
            "ent_coef": 0.01, "max_grad_norm": 0.5, "prio_alpha": 0.8, "prio_beta0": 0.2, "adam_eps": 1e-8,
            "adam_beta1": 0.9, "adam_beta2": 0.999,
        },
        variants=tuple(VARIANTS),
        about="Adam",
    ),
    "forage": FORAGE,
    "forage-muon": replace(
        FORAGE,
        name="forage-muon",
        numbers={**METTA, "learning_rate": 0.015, "adam_eps": 1e-8, "adam_beta1": 0.95},
        variants=(BASE, "millpond"),
        optimizer="muon",
        about="Muon: the recipe `puffer-metta` at these sizes",
    ),
    "forage-bytes": replace(
        FORAGE, name="forage-bytes", variants=(BASE, "millpond"), network=BYTES, about="Adam, PufferLib's encoder"
    ),
}  # fmt: skip
