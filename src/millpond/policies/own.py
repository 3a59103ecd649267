"""Policies of the user's own, named as `package.module:build_policy`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies.errors import PolicyError

METHODS = ("initial_state", "act", "value", "unroll")

PolicyFactory = Callable[..., nn.Module]


def load_policy_factory(path: str) -> PolicyFactory:
    """The function that `package.module:name` names, which makes a policy from two specs and settings.

    It is called as build_policy(observation, action, **settings) with the keyword arguments of
    `millpond.policies.build_policy`, and returns an nn.Module with the methods that `check_policy` asks for.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise PolicyError(f"policy.target={path!r} must be written package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise PolicyError(
            f"policy.target={path!r}: there is no module {error.name!r}; it must be on the Python path "
            "(run from its folder with PYTHONPATH=. or install it)"
        ) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise PolicyError(f"policy.target={path!r}: module {module_name} has no {name!r}")
    if not callable(factory):
        raise PolicyError(f"policy.target={path!r} is a {type(factory).__name__}, not a function")

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
