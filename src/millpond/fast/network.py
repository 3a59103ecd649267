"""A policy with compiled parts: a copy that shares all parameters with the plain one, and computes the same."""

from __future__ import annotations

import copy

import torch
from torch import nn

from millpond.fast.choices import FastChoices
from millpond.fast.encoders import FastEncoder
from millpond.fast.gru import FastGRU
from millpond.fast.heads import has_compiled_head
from millpond.fast.lstm import FastLSTM
from millpond.policies.cores import GRU, LSTM
from millpond.policies.encoders import ObservationEncoder
from millpond.policies.heads import ChoiceHead
from millpond.policies.policy import Policy


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
    fast = copy.copy(policy)
    fast._modules = dict(policy._modules)  # the copy shares parameters, but not its table of submodules
    parts = fast._modules
    if type(policy.encoder) is ObservationEncoder:
        parts["encoder"] = FastEncoder(policy.encoder, autocast)
    if type(policy.core) is LSTM and not autocast:
        parts["core"] = FastLSTM(policy.core)
    if type(policy.core) is GRU and not autocast:
        parts["core"] = FastGRU(policy.core)
    if type(policy.head) is ChoiceHead:
        parts["head"] = FastChoices(policy.head)
    return fast


def is_compiled_after_encoder(policy: nn.Module, autocast: bool) -> bool:
    """True if core and head of a built-in policy are compiled together: an LSTM or a GRU, with choices or vectors."""
    if not is_builtin(policy) or autocast:
        return False
    return type(policy.core) in (LSTM, GRU) and has_compiled_head(policy.head)  # type: ignore[arg-type]
