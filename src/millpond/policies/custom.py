"""Custom policies, named as `package.module:build_policy`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from millpond.envs.families import load_dotted
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies.errors import PolicyError
from millpond.policies.networks import ActorCritic, policy_of_network
from millpond.policies.normalizer import AllReduce
from millpond.policies.parts import observation_parts
from millpond.policies.policy import Policy

METHODS = ("initial_state", "act", "value", "unroll")

PolicyFactory = Callable[..., nn.Module]


def load_policy_factory(path: str) -> PolicyFactory:
    """Return the function `package.module:name`, which builds a policy from two specs and settings.

    It is called as build_policy(observation, action, **settings) with the keyword arguments of
    `millpond.policies.build_policy`, as far as it has parameters for them, and returns an nn.Module: a plain one (see
    `millpond.policies.networks`), or one with the methods that `check_policy` requires. If an observation has several
    parts, these methods are called with a dict of them; a built-in `Policy` splits them itself.
    """
    factory = load_dotted(path, key="policy.target", error=PolicyError)

    def build(observation: ObservationSpec, action: ActionSpec, **settings: Any) -> nn.Module:
        def call() -> Any:
            return call_builder(factory, observation, action, settings, path)

        policy = call()
        if isinstance(policy, nn.Module) and not any(hasattr(policy, name) for name in METHODS):
            unused = [policy]  # the first is not built twice
            policy = policy_of_network(
                lambda: unused.pop() if unused else call(), observation, action, f"policy.target={path!r}", settings
            )
        check_policy(policy, path)
        _refuse_unused(policy, settings, path)
        if settings.get("normalize_observations") and not callable(getattr(policy, "update_normalizer", None)):
            raise PolicyError(
                f"policy.normalize_observations=true, but the policy of policy.target={path!r} has no "
                "update_normalizer(observation, all_reduce); write one or set it to false"
            )
        several = len(observation.parts) > 1 and not isinstance(policy, Policy | ActorCritic)
        return PartsPolicy(policy, observation) if several else policy

    return build


def call_builder(
    builder: PolicyFactory, observation: ObservationSpec, action: ActionSpec, settings: Mapping[str, Any], path: str
) -> Any:
    """Call a function or class that builds a policy with as many of (observation, action, **settings) as it takes.

    `lambda: net`, `Net(observation)`, `Net(observation, action)` and `Net(observation, action, hidden_size=64)` will all do.
    """
    if isinstance(builder, type) and inspect.getattr_static(builder, "__init__") is nn.Module.__init__:
        return builder()  # its signature takes anything, and it refuses all of it
    try:
        parameters = list(inspect.signature(builder).parameters.values())
    except (TypeError, ValueError):
        return builder(observation, action, **settings)
    kinds = {parameter.kind for parameter in parameters}
    named = {parameter.name for parameter in parameters} & settings.keys()
    taken = dict(settings) if inspect.Parameter.VAR_KEYWORD in kinds else {name: settings[name] for name in named}
    specs = {"observation": observation, "action": action}
    free = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in named]
    needed = [p for p in free if p.default is p.empty or p.name in specs]
    if len(needed) > len(specs):
        shown = ", ".join(p.name for p in needed)
        raise PolicyError(
            f"policy.target={path!r} has the parameters {shown}; it is called as build(observation, action, **settings), with "
            f"those of the settings {', '.join(settings)} that it takes. Give the others default values"
        )
    count = len(specs) if inspect.Parameter.VAR_POSITIONAL in kinds else len(needed)
    return builder(*list(specs.values())[:count], **taken)


def _refuse_unused(policy: nn.Module, settings: Mapping[str, Any], path: str) -> None:
    """Refuse settings of the value that a custom policy, which computes its value itself, would ignore."""
    for key, setting, attribute in (
        ("ppo.normalize_values", "normalize_values", "value_scale"),
        ("policy.separate_critic", "separate_critic", "critic"),
    ):
        if settings.get(setting) and getattr(policy, attribute, None) is None:
            raise PolicyError(
                f"{key}=true is for built-in policies and plain networks that give features, not for the policy of "
                f"policy.target={path!r}, which computes its value itself; set {key}=false"
            )


class PartsPolicy(nn.Module):
    """Calls a custom policy with the parts of each observation: a dict name -> tensor [..., *part.shape] of its dtype."""

    def __init__(self, policy: Any, observation: ObservationSpec) -> None:
        super().__init__()
        self.policy = policy
        self._parts = observation_parts(observation)

    @property
    def value_trains_core(self) -> bool:
        return bool(getattr(self.policy, "value_trains_core", True))

    @value_trains_core.setter
    def value_trains_core(self, trains: bool) -> None:
        self.policy.value_trains_core = trains

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        state: Tensor = self.policy.initial_state(batch, device)
        return state

    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Any:
        parts = self._parts(observation)
        return self.policy.act(parts, state, action_mask=action_mask, generator=generator, deterministic=deterministic)

    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        value: Tensor = self.policy.value(self._parts(observation), state)
        return value

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Any:
        return self.policy.unroll(self._parts(observation), state, reset, action, action_mask=action_mask)

    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None = None) -> None:
        self.policy.update_normalizer(self._parts(observation), all_reduce)


def check_policy(policy: Any, path: str) -> None:
    """Refuse a custom policy without the methods that rollout and learning call, or with a state that rows cannot store."""
    if not isinstance(policy, nn.Module):
        raise PolicyError(f"policy.target={path!r} returned a {type(policy).__name__}; it must be a torch.nn.Module")
    missing = [name for name in METHODS if not callable(getattr(policy, name, None))]
    if missing:
        raise PolicyError(
            f"policy.target={path!r} returned a {type(policy).__name__} without {', '.join(missing)}; "
            f"a policy has {', '.join(METHODS)}: see docs/policies.md"
        )
    initial_state: Any = policy.initial_state
    state = initial_state(2, "cpu")
    if not isinstance(state, Tensor) or state.dim() < 1 or len(state) != 2 or state.dtype != torch.float32:
        got = f"{state.dtype} {tuple(state.shape)}" if isinstance(state, Tensor) else type(state).__name__
        raise PolicyError(
            f"policy.target={path!r}: initial_state(2) returned {got}; it must be a float32 tensor of shape (2, ...), one "
            "state per agent, such as torch.zeros(batch, 0) for a policy without memory"
        )
    if state.any():
        raise PolicyError(
            f"policy.target={path!r}: initial_state must be zeros, since rows zero the state where an episode begins; add "
            "a learned or fixed initial state inside the policy"
        )
