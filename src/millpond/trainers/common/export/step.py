"""One step of a policy as a function of named tensors, in the environment's own format.

    observation, state, action_mask  ->  action, value, next_state, and the distribution of the action

Everything between is inside: one-hot encoding, the order of an image's axes, the observation normaliser, the value scale,
the bounds of actions. What a policy does not have (a state, a mask) is left out of the names.

B agents
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import gymnasium.spaces as gs
import torch
from torch import Tensor, nn

from millpond.envs.spaces import ActionLayout, ActionLeaf, Leaf, ObservationLayout
from millpond.envs.spec import TOKEN_PADDING, ActionSpec, EnvSpec, Part
from millpond.learners import QNetwork
from millpond.policies.heads import ChoiceHead, GaussianHead, MixedHead, at_least_float32
from millpond.policies.parts import torch_dtype
from millpond.policies.policy import Policy


@dataclass(frozen=True)
class Named:
    """An input or output: its shape without the batch axis, and what its numbers mean."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meaning: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": ["batch", *self.shape], "meaning": self.meaning}


# -- inputs


@dataclass(frozen=True)
class PartInput:
    """A part of the observation, as the environment shows it. `leaf` is None if that is how the policy reads it."""

    name: str
    part: Part
    leaf: Leaf | None = None

    @property
    def named(self) -> Named:
        """Describe the input."""
        if self.leaf is None:
            return Named(self.name, self.part.dtype, self.part.shape, _meaning_of_part(self.part))
        space = self.leaf.space
        integers = isinstance(space, gs.Discrete | gs.MultiDiscrete)
        return Named(self.name, "int64" if integers else self.part.dtype, tuple(space.shape), str(space))

    def read(self, value: Tensor) -> Tensor:
        """Return the part [B, *part.shape] as the policy reads it."""
        space = None if self.leaf is None else self.leaf.space
        if isinstance(space, gs.Discrete):
            return _one_hot(value, int(space.start), int(space.n))
        if isinstance(space, gs.MultiDiscrete):
            each = zip(value.flatten(1).unbind(1), space.start.ravel(), space.nvec.ravel(), strict=True)
            return torch.cat([_one_hot(choice, int(start), int(size)) for choice, start, size in each], 1)
        if value.dim() == 4 and tuple(value.shape[1:]) != self.part.shape:
            return value.movedim(3, 1)  # an image with channels last
        return value.reshape(-1, *self.part.shape)

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return random values, to try a policy with."""
        named, part = self.named, self.part
        shape = (batch, *named.shape)
        if named.dtype == "int64" and self.leaf is not None and not isinstance(self.leaf.space, gs.Box):
            space = self.leaf.space
            start, size = (
                torch.as_tensor(one) for one in (space.start, getattr(space, "nvec", getattr(space, "n", 1)))
            )
            return start + (torch.rand(shape, generator=generator) * size).long()
        dtype = torch_dtype(part.dtype, part.name)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        high = 1 if dtype == torch.bool else int(part.high or (15 if part.kind == "grid" else 100))
        drawn = torch.randint(0, high + 1, shape, generator=generator).to(dtype)
        if part.kind == "tokens":
            drawn[:, part.shape[0] // 2 :] = TOKEN_PADDING
        return drawn


def _one_hot(value: Tensor, start: int, size: int) -> Tensor:
    """value [B] -> bytes [B, size]"""
    return (value.unsqueeze(1) - start == torch.arange(size, device=value.device)).to(torch.uint8)


def _meaning_of_part(part: Part) -> str:
    kinds = {
        "grid": "codes of cells",
        "tokens": "place, feature and value of each token; place 255 is padding",
        "pixels": "an image, channels first",
        "vector": "numbers",
    }
    return kinds[part.kind] + ("" if part.high is None else f", up to {part.high:g}")


def part_inputs(spec: EnvSpec, leaves: Sequence[Leaf] | None) -> list[PartInput]:
    """Return the inputs of an observation: one, or one for each part of a Dict or Tuple."""
    parts = spec.observation.parts
    names = ["observation"] if len(parts) == 1 else [f"observation/{part.name}" for part in parts]
    if leaves is None:
        return [PartInput(name, part) for name, part in zip(names, parts, strict=True)]
    return [PartInput(name, part, leaf) for name, part, leaf in zip(names, parts, leaves, strict=True)]


# -- outputs


def action_outputs(spec: ActionSpec, leaves: Sequence[ActionLeaf] | None) -> list[Named]:
    """Describe the action: one output, or one for each part of a Dict or Tuple."""
    if leaves is None:
        dtype = "float32" if spec.low else "int64"
        return [Named("action", dtype, spec.shape, describe_action(spec))]
    names = ["action"] if len(leaves) == 1 and not leaves[0].path else [f"action/{leaf.name}" for leaf in leaves]
    return [
        Named(name, "float32" if leaf.low else "int64", tuple(leaf.space.shape), str(leaf.space))
        for name, leaf in zip(names, leaves, strict=True)
    ]


def describe_action(spec: ActionSpec) -> str:
    """Say what the numbers of an action mean."""
    if spec.kind == "discrete":
        return f"one of 0 to {spec.sizes[0] - 1}"
    choices = f"one choice for each of the sizes {list(spec.sizes)}" if spec.sizes else ""
    vector = f"numbers between {list(spec.low)} and {list(spec.high)}" if spec.low else ""
    return ", then ".join(text for text in (choices, vector) if text)


def divide_action(spec: ActionSpec, action: Tensor, leaves: Sequence[ActionLeaf] | None) -> list[Tensor]:
    """Return the action [B, ...] as `action_outputs` describes it, with numbers clipped to their bounds."""
    if spec.kind == "discrete":
        action = action.unsqueeze(1)
    choices, numbers = action[:, : len(spec.sizes)], action[:, len(spec.sizes) :]
    if spec.low:
        low, high = (torch.tensor(bound, dtype=numbers.dtype, device=numbers.device) for bound in (spec.low, spec.high))
        numbers = torch.minimum(torch.maximum(numbers, low), high)
    if leaves is None:
        if spec.kind == "mixed":
            return [torch.cat((choices, numbers), 1)]
        return [numbers if spec.low else choices.long().reshape(-1, *spec.shape)]
    return [_value_of(leaf, choices, numbers) for leaf in leaves]


def _value_of(leaf: ActionLeaf, choices: Tensor, numbers: Tensor) -> Tensor:
    if leaf.low:
        return numbers[:, leaf.first : leaf.first + len(leaf.low)].reshape(-1, *leaf.space.shape)
    chosen = choices[:, leaf.first : leaf.first + len(leaf.sizes)].long().reshape(-1, *leaf.space.shape)
    start = getattr(leaf.space, "start", 0)
    return chosen + torch.as_tensor(start, device=chosen.device)


# -- the step


class PolicyStep(nn.Module):
    """Named tensors in, named tensors out. The batch axis of all of them may have any size.

    The layouts are those of the env's spaces, if it has any; without them the formats are those of the spec.
    """

    def __init__(
        self,
        network: Any,
        spec: EnvSpec,
        observations: ObservationLayout | None = None,
        actions: ActionLayout | None = None,
    ) -> None:
        super().__init__()
        self.network, self.spec = network, spec
        self.parts = part_inputs(spec, None if observations is None else observations.leaves)
        self.action_leaves = None if actions is None else actions.leaves
        self.state_shape = tuple(network.initial_state(1).shape[1:])
        self.has_state = prod(self.state_shape) > 0

    @property
    def inputs(self) -> list[Named]:
        """Describe all inputs, in order."""
        described = [part.named for part in self.parts]
        if self.has_state:
            described.append(
                Named(
                    "state", "float32", self.state_shape, "next_state of the step before; zeros where an episode starts"
                )
            )
        if self.spec.action_masks:
            size = self.spec.action.mask_size
            described.append(Named("action_mask", "bool", (size,), "true for allowed choices, choice after choice"))
        return described

    def draw(self, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return random inputs; of every choice at least the first option is allowed."""
        drawn = {part.name: part.draw(batch, generator) for part in self.parts}
        if self.has_state:
            drawn["state"] = torch.randn((batch, *self.state_shape), generator=generator).clamp(-1, 1)
        if self.spec.action_masks:
            mask = torch.rand((batch, self.spec.action.mask_size), generator=generator) < 0.7
            mask[:, [sum(self.spec.action.sizes[:k]) for k in range(len(self.spec.action.sizes))]] = True
            drawn["action_mask"] = mask
        return drawn

    def outputs(self, results: dict[str, Tensor]) -> list[Named]:
        """Describe all outputs, in order."""
        meanings = {
            "value": "estimated return from here on, in units of the rewards",
            "next_state": "input of the next step",
            "logits": "unnormalised log-probabilities of each option, choice after choice",
            "q_values": "estimated return of each option",
            "mean": "mean of each number, before it is clipped",
            "deviation": "standard deviation of each number",
        }
        described = action_outputs(self.spec.action, self.action_leaves)
        names = [one.name for one in described]
        for name, tensor in results.items():
            if name not in names:
                dtype = str(tensor.dtype).removeprefix("torch.")
                described.append(Named(name, dtype, tuple(tensor.shape[1:]), meanings[name]))
        return described

    def units(self) -> dict[str, Tensor]:
        """Return the size of a unit of the outputs that the policy scales: of the value, and of numbers with bounds."""
        spec, leaves, network = self.spec.action, self.action_leaves, self.network
        units: dict[str, Tensor] = {}
        if spec.low:
            reach = (torch.tensor(spec.high) - torch.tensor(spec.low)) / 2
            described = action_outputs(spec, leaves)
            if leaves is None and described[0].dtype == "float32":  # with choices, if the spec has both
                units[described[0].name] = reach if not spec.sizes else reach.max()
            for named, leaf in zip(described, leaves or (), strict=False):
                if leaf.low:
                    units[named.name] = reach[leaf.first : leaf.first + len(leaf.low)].reshape(named.shape)
            units["mean"] = units["deviation"] = reach
        if isinstance(network, Policy):
            units["value"] = network.in_reward_units(torch.ones(())) - network.in_reward_units(torch.zeros(()))
        return {name: unit.where(unit.isfinite(), torch.ones(())) for name, unit in units.items()}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = {one.part.name: one.read(inputs[one.name]) for one in self.parts}
        first = next(iter(parts.values()))
        observation: Any = parts if len(parts) > 1 else first
        state = inputs.get("state")
        if state is None:
            state = torch.zeros((first.shape[0], *self.state_shape), device=first.device)
        action, value, after, distribution = self._choose(observation, state, inputs.get("action_mask"))
        spec = self.spec.action
        names = [named.name for named in action_outputs(spec, self.action_leaves)]
        results = dict(zip(names, divide_action(spec, action, self.action_leaves), strict=True))
        results |= {"value": value, **distribution}
        return results | {"next_state": after} if self.has_state else results

    def _choose(
        self, observation: Any, state: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Return the most likely action, the value, the next state, and the distribution of the action."""
        network = self.network
        if isinstance(network, Policy):
            numbers, after = network.step(observation, state)
            of_head, value = numbers[:, :-1], network.in_reward_units(numbers[:, -1].float())
            action, _ = network.head.sample(of_head, mask, None, True)
            return action, value, after, _distribution(network.head, of_head, mask)
        chosen = network.act(observation, state, action_mask=mask, deterministic=True)
        if isinstance(network, QNetwork):
            q, _ = network.step(observation, state)
            return chosen.action, chosen.value, chosen.state, {"q_values": _allowed(q, mask)}
        return chosen.action, chosen.value, chosen.state, {}


def _allowed(numbers: Tensor, mask: Tensor | None) -> Tensor:
    return numbers if mask is None else numbers.masked_fill(~mask, torch.finfo(numbers.dtype).min)


def _distribution(head: Any, numbers: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Return what a caller needs to sample actions instead: logits, or mean and deviation."""
    numbers = at_least_float32(numbers)
    if isinstance(head, ChoiceHead):
        return {"logits": _allowed(numbers, mask)}
    if isinstance(head, GaussianHead):
        mean = torch.addcmul(head.centre, numbers, head.reach)
        deviation = (head.log_deviation.exp() * head.reach).expand(mean.shape)
        return {"mean": mean, "deviation": deviation if mask is None else deviation * mask}
    if isinstance(head, MixedHead):
        logits, (allowed, used) = head.logits, head.divide(mask)
        choices = {} if head.choices is None else _distribution(head.choices, numbers[:, :logits], allowed)
        return choices | _distribution(head.vector, numbers[:, logits:], used)
    return {}
