"""Policies of the user's own, named as `package.module:build_policy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from millpond.envs.dotted import load_dotted
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies.errors import PolicyError

METHODS = ("initial_state", "act", "value", "unroll")

PolicyFactory = Callable[..., nn.Module]


def load_policy_factory(path: str) -> PolicyFactory:
    """The function that `package.module:name` names, which makes a policy from two specs and settings.

    It is called as build_policy(observation, action, **settings) with the keyword arguments of
    `millpond.policies.build_policy`, and returns an nn.Module with the methods that `check_policy` asks for.
    """
    factory = load_dotted(path, key="policy.target", error=PolicyError)

    def build(observation: ObservationSpec, action: ActionSpec, **settings: Any) -> nn.Module:
        policy: nn.Module = factory(observation, action, **settings)
        check_policy(policy, path)
        if settings.get("normalize_observations") and not callable(getattr(policy, "update_normalizer", None)):
            raise PolicyError(
                f"policy.normalize_observations=true, but the policy of policy.target={path!r} has no "
                "update_normalizer(observation, all_reduce); write one or set it to false"
            )
        return policy

    return build


def check_policy(policy: Any, path: str) -> None:
    """That a policy of the user's own has what rollout and learning call."""
    if not isinstance(policy, nn.Module):
        raise PolicyError(f"policy.target={path!r} returned a {type(policy).__name__}; it must be a torch.nn.Module")
    missing = [name for name in METHODS if not callable(getattr(policy, name, None))]
    if missing:
        raise PolicyError(
            f"policy.target={path!r} returned a {type(policy).__name__} without {', '.join(missing)}; "
            f"a policy has {', '.join(METHODS)}: see docs/policies.md"
        )
