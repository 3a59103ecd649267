"""Networks that act and learn: encoder (grid, tokens, pixels, vector) -> core (lstm, gru, none) -> heads.

Plain PyTorch, on any device. `millpond.fast` computes the same with compiled code on the CPU.
"""

from __future__ import annotations

from millpond.policies.custom import check_policy, load_policy_factory
from millpond.policies.errors import PolicyError
from millpond.policies.policy import Act, Policy, Unrolled, build_policy, count_parameters

__all__ = [
    "Act",
    "Policy",
    "PolicyError",
    "Unrolled",
    "build_policy",
    "check_policy",
    "count_parameters",
    "load_policy_factory",
]
