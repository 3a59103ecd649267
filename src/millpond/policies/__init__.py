"""Policies: encoder -> core -> heads."""

from millpond.policies.policy import Act, Policy, Unrolled, build_policy, count_parameters, load_policy_factory

__all__ = ["Act", "Policy", "Unrolled", "build_policy", "count_parameters", "load_policy_factory"]
