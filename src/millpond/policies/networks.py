"""Policies from plain modules: a network that gives features, or one that gives the outputs of the actions and the value.

    features [N, F]                     -> Millpond adds memory (`policy.core`), heads and value
    (outputs [N, head], value [N])      -> the whole policy, without memory

A network gets observations as floats: numbers unchanged (or normalised), images divided by their largest value, Discrete
as one-hot; grids and tokens as their bytes. An observation of several parts is a dict of them, by name.

N observations  B sequences  T steps  F features
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from millpond.envs.spec import ActionSpec, ObservationSpec, Part
from millpond.policies.errors import PolicyError
from millpond.policies.heads import Head, make_head
from millpond.policies.normalizer import AllReduce, Normalizer
from millpond.policies.parts import PartReader, torch_dtype
from millpond.policies.policy import Act, Critic, Policy, Unrolled, make_core
from millpond.policies.value_scale import ValueScale

DEFAULTS: dict[str, Any] = {
    "core": "none",
    "hidden_size": 128,
    "num_layers": 1,
    "normalize_observations": False,
    "separate_critic": False,
    "normalize_values": False,
}
PROBE = 3  # observations with which a network is tried; no common size of a layer


class NetworkInputs(nn.Module):
    """Observations [N, *shape] -> what a plain network gets."""

    def __init__(self, spec: ObservationSpec, normalize: bool) -> None:
        super().__init__()
        self.parts = spec.parts
        self.readers = [PartReader(spec, part) for part in spec.parts]
        self.factors = [_factor(part) for part in spec.parts]
        vectors = [part for part in spec.parts if part.kind == "vector"] if normalize else []
        self.normalizers = nn.ModuleDict({_key(part): Normalizer(prod(part.shape)) for part in vectors})
        if normalize and not vectors:
            raise PolicyError("policy.normalize_observations=true, but no part of the observation is a vector")

    def forward(self, observation: Tensor) -> Any:
        inputs = {}
        for part, reader, factor in zip(self.parts, self.readers, self.factors, strict=True):
            value = reader(observation)
            if factor is not None:
                value = value.float() * factor
            if _key(part) in self.normalizers:
                value = self.normalizers[_key(part)](value.flatten(1)).view(value.shape)
            inputs[part.name] = value
        return inputs if len(self.parts) > 1 else inputs[self.parts[0].name]

    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None) -> None:
        for part, reader in zip(self.parts, self.readers, strict=True):
            if _key(part) in self.normalizers:
                normalizer: Any = self.normalizers[_key(part)]
                normalizer.update(reader(observation).flatten(1), all_reduce)


def _key(part: Part) -> str:
    return part.name.replace(".", "/")  # a name of a module has no dots


def _factor(part: Part) -> float | None:
    """Return the factor on a part's numbers; None if they are bytes that stay bytes."""
    if part.kind in ("grid", "tokens"):
        return None
    if part.kind == "pixels" and not torch_dtype(part.dtype, part.name).is_floating_point:
        return 1.0 / (part.high or 255.0)
    return 1.0


class NetworkEncoder(nn.Module):
    """Observations [N, *shape] -> features [N, H], by a plain network and, if its features are not H, a linear layer."""

    def __init__(self, inputs: NetworkInputs, network: nn.Module, features: int, hidden_size: int) -> None:
        super().__init__()
        self.inputs, self.network = inputs, network
        self.linear = nn.Linear(features, hidden_size) if features != hidden_size else nn.Identity()

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.linear(self.network(self.inputs(observation)))
        return features

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the linear layer; the network keeps the weights that it was built with."""
        if isinstance(self.linear, nn.Linear):
            nn.init.orthogonal_(self.linear.weight, 2**0.5, generator=generator)
            nn.init.zeros_(self.linear.bias)

    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None) -> None:
        self.inputs.update_normalizer(observation, all_reduce)


class NoCore(nn.Module):
    """No memory, and no layer either: the features of a plain network reach the heads unchanged."""

    states = 0

    def reset_parameters(self, generator: torch.Generator | None = None) -> None: ...

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return features, state

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        return features


class ActorCritic(nn.Module):
    """A network of (outputs, value) as a policy without memory. Outputs are logits, or means of continuous actions."""

    def __init__(self, inputs: NetworkInputs, network: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.inputs, self.network = inputs, network
        self.head: Head = head  # type: ignore[assignment]

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """observation [N, *obs] -> outputs [N, head], value [N]"""
        outputs, value = self.network(self.inputs(observation))
        return outputs, value.reshape(outputs.shape[0]).float()

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(batch, 0, device=device)

    @torch.no_grad()
    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Act:
        outputs, value = self(observation)
        action, log_prob = self.head.sample(outputs, action_mask, generator, deterministic)
        return Act(action, log_prob, value, state)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        value: Tensor = self(observation)[1]
        return value

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        lead = reset.shape
        outputs, value = self(observation.flatten(0, 1))
        log_prob, entropy = self.head.evaluate(outputs.view(*lead, -1), action, action_mask)
        return Unrolled(log_prob, entropy, value.view(lead))

    @torch.no_grad()
    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None = None) -> None:
        self.inputs.update_normalizer(observation, all_reduce)


def policy_of_network(
    build: Any, observation: ObservationSpec, action: ActionSpec, path: str, settings: dict[str, Any]
) -> nn.Module:
    """Return the policy of a plain module that `build()` makes. A separate critic has a network of its own."""
    settings = DEFAULTS | settings
    head, network = make_head(action), build()
    inputs = NetworkInputs(observation, settings["normalize_observations"])
    result = _try(network, inputs, observation, path)
    if isinstance(result, Tensor):
        return _feature_policy(build, network, inputs, result, observation, head, settings)
    outputs, value = result
    if outputs.shape != (PROBE, head.outputs) or value.numel() != PROBE:
        raise PolicyError(
            f"{path}: the network returned {tuple(outputs.shape)} and {tuple(value.shape)} for {PROBE} observations; these "
            f"actions need outputs of shape ({PROBE}, {head.outputs}) and one value each"
        )
    if settings["separate_critic"]:
        raise PolicyError(
            f"policy.separate_critic=true, but the network of {path} gives the value itself; set it to false"
        )
    return ActorCritic(inputs, network, head)


def _feature_policy(
    build: Any,
    network: nn.Module,
    inputs: NetworkInputs,
    features: Tensor,
    observation: ObservationSpec,
    head: nn.Module,
    settings: dict[str, Any],
) -> Policy:
    core, size = settings["core"], features.shape[-1]
    hidden_size = size if core == "none" else settings["hidden_size"]

    def parts(network: nn.Module, inputs: NetworkInputs) -> tuple[Any, nn.Module]:
        memory = NoCore() if core == "none" else make_core(core, hidden_size, settings["num_layers"], nn.Identity())
        return NetworkEncoder(inputs, network, size, hidden_size), memory

    critic = None
    if settings["separate_critic"]:
        again, own = build(), NetworkInputs(observation, settings["normalize_observations"])
        with torch.no_grad():
            again(own(_zeros(observation)))  # layers that learn their sizes from an observation
        critic = Critic(*parts(again, own), hidden_size)
    value_scale = ValueScale() if settings["normalize_values"] else None
    policy = Policy(*parts(network, inputs), head, hidden_size, critic, value_scale)
    policy.reset_parameters()
    return policy


def _zeros(observation: ObservationSpec) -> Tensor:
    return torch.zeros((PROBE, *observation.shape), dtype=torch_dtype(observation.dtype, "observation"))


def _try(
    network: nn.Module, inputs: NetworkInputs, observation: ObservationSpec, path: str
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the result of a network for a few observations of zeros: features, or outputs and value."""
    seen = inputs(_zeros(observation))
    try:
        with torch.no_grad():
            result = network(seen)
    except Exception as error:
        shown = (
            {name: tuple(part.shape) for name, part in seen.items()} if isinstance(seen, dict) else tuple(seen.shape)
        )
        error.add_note(f"in the network of {path}, which was called with a batch of {PROBE} observations: {shown}")
        raise
    if isinstance(result, Tensor) and result.dim() == 2 and len(result) == PROBE:
        return result
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, Tensor) for one in result):
        return result
    got = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise PolicyError(
        f"{path}: the network returned {got} for {PROBE} observations; it must return features of shape ({PROBE}, F), or the "
        "pair (outputs of the actions, value): see docs/policies.md"
    )
