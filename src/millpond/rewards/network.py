"""The reward network and the batch of steps that it takes.

# N steps  D numbers of an observation  A numbers of an action  H hidden
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from millpond.envs.spec import Part
from millpond.policies.encoders.pixels import PixelEncoder
from millpond.policies.normalizer import CLIP, Normalizer

Objective = Literal["lrd", "rrd", "progress", "success"]
TRANSITION_OBJECTIVES = ("lrd", "rrd")  # rewards of transitions; the others are values of states


@dataclass(frozen=True)
class RewardInputs:
    """Inputs per step: numbers of the observation, numbers of the action, images by name as (H, W, C)."""

    numbers: int
    action: int
    images: tuple[tuple[str, tuple[int, int, int]], ...] = ()


@dataclass
class StepBatch:
    """A batch of steps. Images are uint8 [N, H, W, C] by name; both dicts are empty if there are none."""

    observation: Tensor  # [N, D]
    action: Tensor  # [N, A]
    next_observation: Tensor  # [N, D]
    images: dict[str, Tensor]
    next_images: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.action)


class RewardNetwork(nn.Module):
    """Two hidden layers of size H over the features of a step, and one output.

    lrd, rrd           on [s, a, s - s']      reward r(s, a, s') = scale * output + shift
    progress, success  on [s]                 value p(s) = sigmoid(output)
                                              reward p(s') - p(s) for progress, p(s') for success

    Progress depends on the state alone, so a reversed episode has exactly the opposite reward, and the rewards of a
    segment sum to its gain in progress: potential-based shaping (Ng et al., 1999). Observations are normalised with
    statistics that are saved with the weights. Images first pass three convolutions (bytes over 255; for transitions
    the channels of s and of s - s').
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        objective: Objective,
        inputs: RewardInputs,
        hidden_size: int,
        *,
        normalize: bool = True,
        clip: float = CLIP,
    ) -> None:
        super().__init__()
        self.objective, self.inputs = objective, inputs
        self.uses_transitions = objective in TRANSITION_OBJECTIVES
        self.normalizer = Normalizer(inputs.numbers, clip=clip) if normalize and inputs.numbers else None
        depth = 2 if self.uses_transitions else 1
        self.encoders = nn.ModuleDict(
            {
                name: PixelEncoder(Part(name, "pixels", (channels * depth, height, width), "float32"), hidden_size)
                for name, (height, width, channels) in inputs.images
            }
        )
        width = 2 * inputs.numbers + inputs.action if self.uses_transitions else inputs.numbers
        self.layers = nn.Sequential(
            nn.Linear(width + hidden_size * len(inputs.images), hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, 1),
        )
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))

    def features(self, observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
        """[s, a, s - s'] or [s], normalised. They can be cached as long as the statistics do not change."""
        if self.normalizer is not None:
            observation = self.normalizer(observation)
            next_observation = self.normalizer(next_observation)
        if not self.uses_transitions:
            return observation
        return torch.cat((observation, action, observation - next_observation), dim=-1)

    def pixels(self, images: dict[str, Tensor], next_images: dict[str, Tensor]) -> Tensor | None:
        """Features of the images, [N, H] for each."""
        if not self.encoders:
            return None
        features = []
        for name, encoder in self.encoders.items():
            image = images[name].movedim(-1, -3).to(self.scale.dtype) / 255
            if self.uses_transitions:
                next_image = next_images[name].movedim(-1, -3).to(self.scale.dtype) / 255
                image = torch.cat((image, image - next_image), dim=-3)
            features.append(torch.relu(encoder(image)))
        return torch.cat(features, dim=-1)

    def raw(self, features: Tensor, pixels: Tensor | None = None) -> Tensor:
        """The unscaled output, one number per row of features."""
        output: Tensor = self.layers(features if pixels is None else torch.cat((features, pixels), dim=-1)).squeeze(-1)
        return output

    def forward(self, features: Tensor, pixels: Tensor | None = None) -> Tensor:
        """A reward for transitions, a logit for states."""
        output = self.raw(features, pixels)
        return output * self.scale + self.shift if self.uses_transitions else output

    def outputs(self, batch: StepBatch) -> Tensor:
        """`forward` on a batch of steps."""
        features = self.features(batch.observation, batch.action, batch.next_observation)
        outputs: Tensor = self(features, self.pixels(batch.images, batch.next_images))
        return outputs

    def set_scale(self, mean_reward: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Scale the output to the range of the rewards: mean_reward is R / T of each training episode."""
        self.shift.fill_(float(mean_reward.mean()))
        self.scale.fill_(max(float(mean_reward.std()), 0.01 * abs(float(mean_reward.mean())), 1e-8))

    @torch.no_grad()
    def copy_from(self, online: RewardNetwork) -> None:
        """Copy parameters and buffers of another network of the same shape."""
        for targets, sources in ((self.parameters, online.parameters), (self.buffers, online.buffers)):
            torch._foreach_copy_(list(targets()), list(sources()))

    def value(self, batch: StepBatch) -> Tensor:
        """p(s) in 0..1, for progress and success."""
        return torch.sigmoid(self.outputs(batch))

    def reward(self, batch: StepBatch) -> Tensor:
        """The reward of each step."""
        if self.uses_transitions:
            return self.outputs(batch)
        following = StepBatch(
            batch.next_observation, batch.action, batch.next_observation, batch.next_images, batch.next_images
        )
        return self.value(following) - self.value(batch) if self.objective == "progress" else self.value(following)


def reset_parameters(network: RewardNetwork, generator: torch.Generator) -> None:
    """Initialise all parameters from one generator with torch's default distribution, so that a seed determines them."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / module.weight[0].numel() ** 0.5
            for parameter in (module.weight, module.bias):
                if parameter is not None:
                    with torch.no_grad():
                        parameter.uniform_(-bound, bound, generator=generator)
