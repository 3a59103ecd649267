"""Gradients of a recipe's networks on a device against those on the CPU, for the same inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from millpond.learners import DQN
from millpond.replay.pond import PondBatch
from millpond.rewards.network import RewardNetwork, StepBatch
from millpond.rollout.micro_batch import gather
from millpond.trainers.common.session import load_to_run, make_trainer, require_trainer, start_run
from millpond.trainers.mixture.trainer import MixtureTrainer
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import Updater
from millpond.trainers.reward.trainer import RewardTrainer

TOLERANCE = 1e-4  # of the largest number of a gradient, in float32; TF32 and bfloat16 differ by more


def compare_with_cpu(recipe: str, device: torch.device, folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Train a recipe's preset `debug` on the CPU, then compute one gradient there and on the device.

    Return the largest difference of each, as a share of its largest number.
    """
    with trained_on_cpu(recipe, folder, changes) as trainer:
        if isinstance(trainer, PPOTrainer):
            pairs = {"policy": [ppo_gradient(trainer, torch.device("cpu")), ppo_gradient(trainer, device)]}
        elif isinstance(trainer, MixtureTrainer):
            pairs = {"Q-network": [q_gradient(trainer, torch.device("cpu")), q_gradient(trainer, device)]}
        else:
            pairs = {
                "reward network": [reward_gradient(trainer, torch.device("cpu")), reward_gradient(trainer, device)]
            }
    shares = {name: relative_difference(*pair) for name, pair in pairs.items()}
    return {"differences": shares, "tolerance": TOLERANCE, "equal": all(share < TOLERANCE for share in shares.values())}


@contextmanager
def trained_on_cpu(recipe: str, folder: Path, changes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the trainer of a recipe's preset `debug` after training on the CPU."""
    settings = {**changes, "device": "cpu", "run_dir": str(folder), "log.tensorboard": False}
    loaded = load_to_run(recipe, settings, "debug", trust=True)
    recorded = require_trainer(loaded)
    with redirect_stdout(StringIO()):
        trainer = make_trainer(loaded, start_run(loaded, None, recorded=recorded), recorded=recorded)
        try:
            trainer.train()
            yield trainer
        finally:
            trainer.close()


def ppo_gradient(trainer: PPOTrainer, device: torch.device) -> Tensor:
    """Return the gradient of the loss over the first minibatch of a trainer's rows."""
    policy = copy.deepcopy(trainer.policy).to(device)
    picked = torch.arange(trainer.share.minibatch_segments)
    valid = trainer.advantages.valid_steps.index_select(0, picked).sum().to(device)
    weight = np.ones(len(picked), np.float32)
    micro_batch = gather(trainer.rows, trainer.advantages, picked, weight, device)
    updater = Updater(policy, device=device)
    updater.backward_of([micro_batch], trainer.now.coefficients(policy, trainer.rows), valid)
    return flat_gradient(policy)


def q_gradient(trainer: MixtureTrainer, device: torch.device) -> Tensor:
    """Return the gradient of the BigAgent's loss over a batch of its replay buffer."""
    assert trainer.big is not None
    pond = trainer.big.pond.pond
    assert pond is not None
    batch = pond.sample(32, np.random.default_rng(0), stack=trainer.big.pond.stack, columns=())
    moved: dict[str, Any] = {
        name: value.to(device) if isinstance(value, Tensor) else value for name, value in vars(batch).items()
    }
    dqn = DQN(copy.deepcopy(trainer.big.dqn.network), trainer.big.dqn.config, device=device)
    dqn.update(PondBatch(**moved))
    return flat_gradient(dqn.network)


def reward_gradient(trainer: RewardTrainer, device: torch.device) -> Tensor:
    """Return the gradient of the mean squared reward of a batch of steps."""
    network: RewardNetwork = copy.deepcopy(trainer.network).to(device)
    inputs, generator = network.inputs, torch.Generator().manual_seed(0)

    def numbers(width: int) -> Tensor:
        return torch.randn(64, width, generator=generator).to(device)

    images = {
        name: torch.randint(256, (64, *shape), generator=generator, dtype=torch.uint8).to(device)
        for name, shape in inputs.images
    }
    steps = StepBatch(numbers(inputs.numbers), numbers(inputs.action), numbers(inputs.numbers), images, images)
    network.outputs(steps).square().mean().backward()  # type: ignore[no-untyped-call]
    return flat_gradient(network)


def flat_gradient(network: nn.Module) -> Tensor:
    """Return the gradients of all parameters as one vector on the CPU."""
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return torch.cat([gradient.detach().cpu().flatten().float() for gradient in gradients])


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two vectors as a share of the largest number of the first."""
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-30))
