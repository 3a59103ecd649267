"""The fast path: networks and PPO updates in compiled code on the CPU, with the results of the plain path.

Entry points, each asked once when a run is built. They return None if there is nothing faster than plain PyTorch:

    actor(policy)       acts for the rollout: arrays in, arrays out
    compiled_parts(policy)   the same policy with compiled parts, whose graph is torch's
    updater(policy)     gradients of rows
    dqn_updates(dqn)    updates of a DQN
    pqn_updates(group)  updates and values of PQN agents
    sac_updates(sac)    updates of SAC

`limits` has the sizes that the planner needs. Nothing heavy is imported before an entry point is called. The environment
variable MILLPOND_FAST=0 switches the fast path off, as `trainer.fast=false` does for one run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from millpond.fast.act import NetworkActor, RecurrentActor
    from millpond.fast.feedforward import FeedforwardActor
    from millpond.fast.q_learners import CompiledDQN, CompiledPQN
    from millpond.fast.sac_learner import CompiledSAC
    from millpond.fast.update import FastUpdater
    from millpond.learners import DQN, SAC, AgentGroup

__all__ = ["actor", "compiled_parts", "description", "dqn_updates", "is_on", "pqn_updates", "sac_updates", "updater"]


def is_on() -> bool:
    """True unless the environment variable MILLPOND_FAST is 0."""
    return os.environ.get("MILLPOND_FAST", "1") != "0"


def actor(policy: nn.Module, *, autocast: bool = False) -> RecurrentActor | FeedforwardActor | NetworkActor | None:
    """Return an actor for a policy; None for a custom policy that acts in its own way.

    `autocast`: the policy acts in bfloat16.
    """
    from millpond.fast.act import NetworkActor, RecurrentActor
    from millpond.fast.feedforward import FeedforwardActor, is_compiled_feedforward
    from millpond.fast.network import is_builtin, is_compiled_after_encoder, with_compiled_parts

    if not _is_usable() or not is_builtin(policy):
        return None
    fitting: Any = policy
    if not autocast and is_compiled_feedforward(fitting):
        return FeedforwardActor(fitting, with_compiled_parts(fitting, autocast))
    return RecurrentActor(fitting) if is_compiled_after_encoder(fitting, autocast) else NetworkActor(fitting, autocast)


def compiled_parts(policy: nn.Module, *, autocast: bool = False) -> nn.Module | None:
    """Return a built-in policy whose encoder, core and head are compiled where possible; it shares all parameters."""
    from millpond.fast.network import is_builtin, with_compiled_parts

    if not _is_usable() or not is_builtin(policy):
        return None
    fitting: Any = policy
    return with_compiled_parts(fitting, autocast)


def updater(policy: nn.Module, *, autocast: bool = False) -> FastUpdater | None:
    """Return an updater for a policy. Threads share the rows of any policy; built-in ones are compiled, too.

    Those with a separate critic are left to plain PyTorch, unless they have no memory and see vectors, and so are those with
    the auxiliary head of gradient TD(lambda).
    """
    from millpond.fast.feedforward import is_compiled_feedforward
    from millpond.fast.network import is_builtin, on_cpu_in_float32
    from millpond.fast.update import FastUpdater

    if not _is_usable() or not on_cpu_in_float32(policy):
        return None
    fitting: Any = policy
    if is_builtin(policy) and fitting.correction is not None:
        return None
    if is_builtin(policy) and fitting.critic is not None and (autocast or not is_compiled_feedforward(fitting)):
        return None
    return FastUpdater(policy, autocast=autocast)


def dqn_updates(dqn: DQN) -> CompiledDQN | None:
    """Return compiled updates of a DQN with a Q-network on small images, unless its transitions have importance weights."""
    if not _is_usable() or dqn.config.priority_exponent:
        return None
    from millpond.fast.q_learners import CompiledDQN, pixel_encoder

    pixels = pixel_encoder(dqn.network)
    return None if pixels is None else CompiledDQN(dqn, pixels)


def pqn_updates(group: AgentGroup) -> CompiledPQN | None:
    """Return compiled updates of PQN agents with Q-networks on small images."""
    if not _is_usable():
        return None
    from millpond.fast.q_learners import CompiledPQN, pixel_encoder

    pixels = pixel_encoder(group.networks[0])
    return None if pixels is None else CompiledPQN(group, pixels)


def sac_updates(sac: SAC) -> CompiledSAC | None:
    """Return compiled updates of SAC."""
    if not _is_usable():
        return None
    from millpond.fast.sac_learner import CompiledSAC, is_compiled

    return CompiledSAC(sac) if is_compiled(sac) else None


def description() -> str:
    """Describe the fast path on this machine, for `millpond doctor`."""
    from millpond.fast.gemm import SGEMM
    from millpond.fast.packed_gemm import LANES, USE_PACKED_GEMM

    if not is_on():
        return "plain PyTorch: MILLPOND_FAST=0"
    if not SGEMM:
        return "plain PyTorch: torch's BLAS cannot be called from compiled code"
    if not USE_PACKED_GEMM:
        return "whole rows, with torch's BLAS"
    return f"whole rows, with Millpond's packed GEMM ({'AVX-512' if LANES == 16 else 'AVX2'})"


def _is_usable() -> bool:
    from millpond.fast.gemm import SGEMM

    return is_on() and bool(SGEMM)
