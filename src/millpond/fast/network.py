"""A policy with compiled parts: a copy that shares all parameters with the plain one, and computes the same."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from millpond.fast.choices import FastChoices
from millpond.fast.encoders import FastEncoder
from millpond.fast.gru import FastGRU
from millpond.fast.heads import has_compiled_head
from millpond.fast.lstm import FastLSTM
from millpond.fast.mingru import FastMinGRU
from millpond.policies.cores import GRU, LSTM
from millpond.policies.encoders import ObservationEncoder
from millpond.policies.heads import ChoiceHead
from millpond.policies.mingru import MinGRU
from millpond.policies.policy import Critic, Policy

ActorOrCritic = TypeVar("ActorOrCritic", Policy, Critic)


def on_cpu_in_float32(module: nn.Module) -> bool:
    """True if all parameters are where, and what, the compiled code computes with."""
    return all(p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters())


def is_builtin(policy: nn.Module) -> bool:
    """True for a Policy whose methods no subclass has replaced, on the CPU in float32."""
    if not isinstance(policy, Policy) or not on_cpu_in_float32(policy):
        return False
    return all(getattr(type(policy), name) is getattr(Policy, name) for name in ("act", "value", "step", "unroll"))


def with_compiled_parts(policy: Policy, autocast: bool) -> Policy:
    """Return a copy whose encoder, core and head are compiled where possible. With `autocast` the core stays torch's."""
    fast = _with_compiled_network(policy, autocast)
    if policy.critic is not None:
        fast._modules["critic"] = _with_compiled_network(policy.critic, autocast)
    if type(policy.head) is ChoiceHead:
        fast._modules["head"] = FastChoices(policy.head)
    return fast


def _with_compiled_network(module: ActorOrCritic, autocast: bool) -> ActorOrCritic:
    fast = copy.copy(module)
    fast._modules = dict(module._modules)  # the copy shares parameters, but not its table of submodules
    parts = fast._modules
    if type(module.encoder) is ObservationEncoder:
        parts["encoder"] = FastEncoder(module.encoder, autocast)
    if type(module.core) is LSTM and not autocast:
        parts["core"] = FastLSTM(module.core)
    if type(module.core) is GRU and not autocast:
        parts["core"] = FastGRU(module.core)
    if type(module.core) is MinGRU and not autocast:
        parts["core"] = FastMinGRU(module.core)
    return fast


def is_compiled_after_encoder(policy: nn.Module, autocast: bool) -> bool:
    """True if core and head of a built-in policy are compiled together: an LSTM or a GRU, with choices or vectors.

    A policy with a separate critic has two cores; its parts are compiled, not the whole.
    """
    if not is_builtin(policy) or autocast or getattr(policy, "critic", None) is not None:
        return False
    return type(policy.core) in (LSTM, GRU) and has_compiled_head(policy.head)  # type: ignore[arg-type]
