"""Settings that all sides of a comparison share. Imported by every side, so there are no imports but dataclasses.

Recipes of Millpond state them again, as YAML; tests/bench/test_peers.py compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PPOTask:
    """Envs x steps are collected per iteration, and trained on in `epochs` passes of `minibatches` minibatches.

    `layers` are hidden layers that actor and critic share; an image is first read by the convolutions of Mnih et al. (2015)
    and a layer of `features`. All networks have orthogonal weights and linear heads.
    """

    env: str
    envs: int
    steps: int
    epochs: int
    minibatches: int
    layers: tuple[int, ...]
    activation: str
    learning_rate: float
    entropy: float
    features: int | None = None
    value_trains_layers: bool = True
    clip: float = 0.2
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value: float = 0.5
    max_norm: float = 0.5
    adam_eps: float = 1e-5

    @property
    def batch(self) -> int:
        return self.envs * self.steps

    @property
    def minibatch(self) -> int:
        return self.batch // self.minibatches


@dataclass(frozen=True)
class SACTask:
    """One env. Every `collect` env steps are followed by as many updates, from `warm_up` env steps on."""

    env: str = "Pendulum-v1"
    iteration: int = 200  # env steps
    warm_up: int = 200  # env steps with random actions, without updates
    collect: int = 1
    batch: int = 256
    hidden: int = 256  # of both layers of actor and critics
    replay: int = 100_000
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005


@dataclass(frozen=True)
class DQNTask:
    """A phase: every env takes `collect` steps, then `updates` updates follow, from `warm_up` env steps on.

    The network: 16 filters of 3x3, a layer of 128, LayerNorm over the channels of each place and over the layer, ReLU.
    """

    game: str = "breakout"
    envs: int = 8
    collect: int = 16  # steps of every env
    updates: int = 32  # one per 4 env steps
    iteration: int = 1_024  # env steps: 8 phases
    warm_up: int = 1_024  # env steps with random actions, without updates
    batch: int = 128
    filters: int = 16
    hidden: int = 128
    replay: int = 100_000
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    max_norm: float = 10.0
    target_updates: int = 1_000  # between copies to the target network
    epsilon_end: float = 0.05
    epsilon_over: int = 20_000  # env steps of the linear decay from 1

    @property
    def phase(self) -> int:
        return self.envs * self.collect

    def epsilon(self, env_steps: int) -> float:
        """Return the rate of random actions after so many env steps."""
        return max(self.epsilon_end, 1.0 - (1.0 - self.epsilon_end) * env_steps / self.epsilon_over)


PPO = {
    "cartpole-mlp": PPOTask(
        "CartPole-v1", envs=8, steps=128, epochs=4, minibatches=4, layers=(64, 64), activation="tanh",
        learning_rate=1e-3, entropy=0.01, value_trains_layers=False,
    ),
    "halfcheetah": PPOTask(
        "HalfCheetah-v5", envs=8, steps=256, epochs=4, minibatches=4, layers=(64, 64), activation="tanh",
        learning_rate=3e-4, entropy=0.0, value_trains_layers=False,
    ),
    "pong": PPOTask(
        "pong", envs=8, steps=128, epochs=4, minibatches=4, features=512, layers=(512,), activation="relu",
        learning_rate=2.5e-4, entropy=0.01, clip=0.1,
    ),
}  # fmt: skip
SAC = SACTask()
DQN = DQNTask()
