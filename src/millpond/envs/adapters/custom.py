"""Custom envs by dotted path: `package.module:make_env`.

The function or class is called with the option `kwargs` and makes one env, of Gymnasium or a parallel one of PettingZoo.
If it has a parameter `num_envs`, it makes a whole `EnvBatch` instead and is called as `make(num_envs, buffers, **kwargs)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millpond.envs.adapters.gymnasium import GymnasiumEnvs, LoopOptions, MakeEnv
from millpond.envs.adapters.pettingzoo import PettingZooEnvs
from millpond.envs.env_batch import Buffers, EnvBatch, EnvError
from millpond.envs.options import load_dotted, parse_options
from millpond.envs.spec import EnvSpec


def makes_env_batch(factory: Any) -> bool:
    """True if a factory makes a whole `EnvBatch`."""
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def require_arguments(factory: Any, arguments: Mapping[str, Any], path: str) -> None:
    """Refuse unknown and missing arguments of a factory, before its own code can raise a TypeError."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise EnvError(
            f"{path!r} takes {signature}: {error}; its arguments are env.options.NAME=VALUE in a config and "
            "kwargs.NAME=VALUE in `millpond envs check`"
        ) from None


def custom_env(path: str, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> EnvBatch:
    """Make a batch of custom envs."""
    factory = load_dotted(path)
    options = parse_options(LoopOptions, mapping, env_id=path)
    if makes_env_batch(factory):
        arguments = {"num_envs": num_envs, "buffers": buffers, **options.kwargs}
        require_arguments(factory, arguments, path)
        env_batch: EnvBatch = factory(**arguments)
        for name in ("spec", "num_envs", "buffers", "reset", "step", "episodes"):
            if not hasattr(env_batch, name):
                raise EnvError(f"{path!r} takes num_envs, so it must make an EnvBatch, but its result has no {name!r}")
        if not isinstance(env_batch.spec, EnvSpec):
            raise EnvError(f"{path!r}: spec of its EnvBatch must be a millpond.envs.spec.EnvSpec")
        if buffers is not None and env_batch.buffers is not buffers:
            raise EnvError(f"{path!r}: its EnvBatch must write into the buffers it is given, but it has its own")
        return env_batch

    require_arguments(factory, options.kwargs, path)

    def make() -> Any:
        try:
            env = factory(**options.kwargs)
        except TypeError as error:
            refused = [name for name in options.kwargs if f"unexpected keyword argument {name!r}" in str(error)]
            if not refused:
                raise
            raise EnvError(f"{path!r} does not take {refused[0]}={options.kwargs[refused[0]]!r}: {error}") from error
        if options.max_steps is not None and not hasattr(env, "possible_agents"):
            import gymnasium

            env = gymnasium.wrappers.TimeLimit(env, options.max_steps)
        return env

    probe = make()
    kind = GymnasiumEnvs if is_gymnasium(probe, path) else PettingZooEnvs
    env_batch = kind(path, _with_first(probe, make), num_envs, mapping, buffers)
    if options.max_steps is not None:
        env_batch.spec = replace(env_batch.spec, max_steps=options.max_steps)
    return env_batch


def _with_first(probe: Any, make: MakeEnv) -> MakeEnv:
    """Return a factory that returns `probe` first, so that the probed env is not wasted."""
    unused = [probe]
    return lambda: unused.pop() if unused else make()


def is_gymnasium(env: Any, path: str) -> bool:
    """True for a Gymnasium env, False for a PettingZoo parallel one; anything else is refused."""
    if hasattr(env, "agent_iter"):
        raise EnvError(
            f"{path!r} made a PettingZoo env in which agents act in turn; make it parallel: "
            "pettingzoo.utils.aec_to_parallel(env)"
        )
    if hasattr(env, "possible_agents") or (hasattr(env, "agents") and callable(getattr(env, "action_space", None))):
        return False
    if all(hasattr(env, name) for name in ("reset", "step", "observation_space", "action_space")):
        return True
    raise EnvError(
        f"{path!r} made a {type(env).__name__}, which is neither a gymnasium.Env (reset, step, observation_space, "
        "action_space) nor a PettingZoo ParallelEnv (possible_agents)"
    )
