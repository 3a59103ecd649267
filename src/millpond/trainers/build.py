"""The policy of a config, as training builds it and as a run is loaded again."""

from __future__ import annotations

from typing import Any

import torch

from millpond.config.policy import PolicyConfig
from millpond.envs.spec import EnvSpec
from millpond.policies import build_policy, load_policy_factory


def make_policy(policy: PolicyConfig, spec: EnvSpec, device: torch.device) -> Any:
    """The built-in policy, or the user's own, for a world, on a device."""
    build = load_policy_factory(policy.target) if policy.target else build_policy
    return build(
        spec.observation,
        spec.action,
        encoder=policy.encoder,
        core=policy.core,
        hidden_size=policy.hidden_size,
        normalize_observations=policy.normalize_observations,
    ).to(device)
