"""Environments by id: describe one, make a batch of envs, and list them all.

    grid   recall   truncation   mettagrid   gymnasium:ID   pettingzoo:MODULE   atari:GAME   minatar:GAME
    package.module:make_env   a custom env

`describe` is cheap, so that a plan can compute bytes with it. `make_env_batch` may be called in a worker process: its
arguments are plain values, and nothing here imports torch.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from millpond.envs import families
from millpond.envs.adapters import atari, minatar
from millpond.envs.env_batch import Buffers, EnvBatch, EnvError
from millpond.envs.families import install_command, load_dotted, missing_extra, parse_options
from millpond.envs.reward_wrappers import EpisodicEnvs, RewardEnvs, RewardOptions
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.formatting import plural

BUILT_IN = tuple(family.name for family in families.FAMILIES.values() if ":" not in family.form)
FAMILIES = tuple(family.name for family in families.FAMILIES.values() if family.form.startswith(f"{family.name}:"))
REWARD_NAMES = tuple(f.name for f in fields(RewardOptions))
ABOUT = {
    "grid": "agents forage: ore, batteries, hearts; built in, millions of steps per second",
    "recall": "built in: remember a cue for 8 to 32 steps",
    "truncation": "built in: its value is right only when truncation bootstraps",
    "mettagrid": "the real MettaGrid: the forage scenario, or a custom config",
}


def known_ids() -> list[str]:
    """Return every id that is known in advance; for open families, the form of their ids."""
    games = [f"minatar:{game}" for game in minatar.GAMES] + [f"atari:{game}" for game in sorted(atari.MINIMAL_ACTIONS)]
    return [*BUILT_IN, *games, "gymnasium:ID", "pettingzoo:MODULE", "package.module:make_env"]


def registered_ids() -> list[str]:
    """Return every id that is a recipe, with those of Gymnasium's registry, which is imported."""
    import gymnasium

    own = [name for name, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]
    games = [one for one in known_ids() if one.startswith(("atari:", "minatar:"))]
    return ["recall", "truncation", *games, *(f"gymnasium:{env}" for env in own)]  # ale_py's are atari:GAME here


def near_ids(name: str) -> list[str]:
    """Return up to three ids that a mistyped one may mean, also without its family: breakout, gymnasium:CartPole-v9."""
    import difflib

    known = registered_ids()
    by_text: dict[str, list[str]] = {}
    for env_id in known:
        family, _, rest = env_id.rpartition(":")
        texts = [env_id, rest, rest.rpartition("-v")[0]] if family else [env_id]
        for text in texts:
            by_text.setdefault(text.lower(), []).append(env_id)
    near = difflib.get_close_matches(name.lower(), [text for text in by_text if text], n=3, cutoff=0.75)
    ids = [env_id for text in near for env_id in reversed(by_text[text])]  # of several versions, the newest first
    family = name.rpartition(":")[0].lower()
    return list(dict.fromkeys(sorted(ids, key=lambda env_id: not env_id.startswith(f"{family}:"))))[:3]


def reward_options(env_id: str, options: Mapping[str, Any]) -> RewardOptions:
    """Return the reward options, which every environment has."""
    return parse_options(RewardOptions, {k: v for k, v in options.items() if k in REWARD_NAMES}, env_id=env_id)


def describe(env_id: str, options: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of an environment.

    If only the env itself knows it (gymnasium, pettingzoo, custom envs and MettaGrid configs), one env is made and closed;
    the message of an error in its code says where it was raised.
    """
    reward_options(env_id, options)
    own_options = {name: value for name, value in options.items() if name not in REWARD_NAMES}
    family, _, name = env_id.partition(":")
    if env_id == "grid":
        from millpond.envs.grid.game import describe as describe_grid

        return describe_grid(own_options)
    if env_id == "recall":
        from millpond.envs.probes import describe_recall

        return describe_recall(own_options)
    if env_id == "truncation":
        from millpond.envs.probes import describe_truncation

        return describe_truncation(own_options)
    if env_id == "mettagrid":
        from millpond.envs.mettagrid import describe as describe_mettagrid

        return describe_mettagrid(own_options)
    if family == "atari":
        from millpond.envs.adapters.atari import describe as describe_atari

        return describe_atari(name, own_options)
    if family == "minatar":
        from millpond.envs.adapters.minatar import describe as describe_minatar

        return describe_minatar(name, own_options)
    try:
        env_batch = make_env_batch(env_id, 1, options)
        env_batch.close()
    except MillpondError:
        raise
    except Exception as error:
        raise EnvError(f"env {env_id!r} cannot be made: {describe_error(error)}") from error
    # A custom batch may reuse the spec of a built-in environment; under its own id it does not count as one.
    return replace(env_batch.spec, id=env_id) if env_batch.spec.id in BUILT_IN else env_batch.spec


def make_env_batch(env_id: str, num_envs: int, options: Mapping[str, Any], buffers: Buffers | None = None) -> EnvBatch:
    """Make a batch of `num_envs` envs that writes into `buffers`; without `buffers`, it allocates its own."""
    if num_envs < 1:
        raise EnvError(f"env {env_id!r}: num_envs={num_envs} must be at least 1")
    rewards = reward_options(env_id, options)
    own_options = {name: value for name, value in options.items() if name not in REWARD_NAMES}
    env_batch = _make(env_id, num_envs, own_options, buffers)
    if rewards.changes:
        env_batch = RewardEnvs(env_batch, rewards)
    return EpisodicEnvs(env_batch) if rewards.episodic else env_batch


@dataclass(frozen=True)
class EnvBatchFactory:
    """Create an EnvBatch of an env id with options, also in worker processes: picklable, and its module imports no torch."""

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, num_envs: int, buffers: Buffers, first_env: int) -> EnvBatch:
        return make_env_batch(self.env_id, num_envs, self.options, buffers)


def _make(env_id: str, num_envs: int, own_options: Mapping[str, Any], buffers: Buffers | None) -> EnvBatch:
    family, _, name = env_id.partition(":")
    if env_id == "grid":
        from millpond.envs.grid.envs import GridEnvs

        return GridEnvs(num_envs, own_options, buffers)
    if env_id == "recall":
        from millpond.envs.probes import RecallEnvs

        return RecallEnvs(num_envs, own_options, buffers)
    if env_id == "truncation":
        from millpond.envs.probes import TruncationEnvs

        return TruncationEnvs(num_envs, own_options, buffers)
    if env_id == "mettagrid":
        from millpond.envs.mettagrid import MettaGridEnvs

        return MettaGridEnvs(num_envs, own_options, buffers)
    if family == "atari":
        from millpond.envs.adapters.atari import AtariEnvs

        return AtariEnvs(name, num_envs, own_options, buffers)
    if family == "minatar":
        from millpond.envs.adapters.minatar import MinAtarEnvs

        return MinAtarEnvs(name, num_envs, own_options, buffers)
    if family == "gymnasium" and name:
        from millpond.envs.adapters.gymnasium import GymnasiumEnvs, LoopOptions, gymnasium_maker

        loop = parse_options(LoopOptions, own_options, env_id=env_id)
        return GymnasiumEnvs(env_id, gymnasium_maker(name, loop), num_envs, own_options, buffers)
    if family == "pettingzoo" and name:
        from millpond.envs.adapters.gymnasium import LoopOptions
        from millpond.envs.adapters.pettingzoo import PettingZooEnvs, pettingzoo_maker

        loop = parse_options(LoopOptions, own_options, env_id=env_id)
        return PettingZooEnvs(env_id, pettingzoo_maker(name, loop), num_envs, own_options, buffers)
    if name:
        return make_custom(env_id, num_envs, own_options, buffers)
    raise unknown(env_id)


def make_custom(path: str, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> EnvBatch:
    """Make a batch of custom envs: `path` names a function or class as `package.module:make_env`.

    It is called with the option `kwargs` and makes one env, of Gymnasium or a parallel one of PettingZoo. If it has a
    parameter `num_envs`, it makes a whole `EnvBatch` instead and is called as `make(num_envs, buffers, **kwargs)`.
    """
    from millpond.envs.adapters.gymnasium import GymnasiumEnvs, LoopOptions
    from millpond.envs.adapters.pettingzoo import PettingZooEnvs

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


def _with_first(probe: Any, make: Callable[[], Any]) -> Callable[[], Any]:
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


def unknown(env_id: str) -> EnvError:
    """Return the error for an unknown id."""
    import difflib

    near = difflib.get_close_matches(env_id, [*BUILT_IN, *FAMILIES], n=1)
    forms = [*BUILT_IN, *(f"{family}:NAME" for family in FAMILIES)]
    hint = f"; did you mean {near[0] if near[0] in BUILT_IN else near[0] + ':NAME'!r}?" if near else "."
    return EnvError(
        f"there is no env {env_id!r}{hint} Ids are {', '.join(forms)}, or package.module:make_env for a custom env"
    )


def prepare(env_id: str, options: Mapping[str, Any]) -> None:
    """Do once what every worker would do otherwise: compile the grid environment into numba's cache on disk."""
    if env_id == "grid":
        import numpy as np

        env_batch = make_env_batch(env_id, 1, options)
        env_batch.reset(np.zeros(1, np.uint64))
        env_batch.step(0, 1)
        env_batch.close()


def describe_error(error: Exception) -> str:
    """Describe an error in one line: type, message, notes, and the line of foreign code that raised it."""
    notes = "; ".join(getattr(error, "__notes__", []))
    text = str(error) if isinstance(error, MillpondError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, ModuleNotFoundError) and error.name:
        text += f"; install it, perhaps with: pip install {error.name.split('.')[0]}"
    frames = [] if isinstance(error, MillpondError) else traceback.extract_tb(error.__traceback__)
    location = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
    return f"{text}{''.join(f' ({part})' for part in (location, notes) if part)}"


@dataclass(frozen=True)
class EnvListing:
    """One line of `millpond envs`, all text."""

    id: str
    observation: str
    action: str
    agents: str
    savable: str
    needs: str  # the pip command that installs what is missing; empty if nothing is
    about: str


def list_envs(*, games: bool = False) -> list[EnvListing]:
    """List all environments with their default options; with `games`, each game of Atari and MinAtar."""
    listings = [_listing(describe(env_id, {}), ABOUT[env_id]) for env_id in BUILT_IN]
    minatar_games = list(minatar.GAMES) if games else ["breakout"]
    atari_games = sorted(atari.MINIMAL_ACTIONS) if games else ["gravitar"]
    about_minatar, about_atari = f"one of {len(minatar.GAMES)} games", f"one of {len(atari.MINIMAL_ACTIONS)} games"
    listings += [_listing(describe(f"minatar:{game}", {}), about_minatar) for game in minatar_games]
    listings += [_listing(describe(f"atari:{game}", {}), about_atari) for game in atari_games]
    for env_id, about in (
        ("gymnasium:ID", "any env of Gymnasium's registry, as gymnasium:CartPole-v1; " + _gymnasium_extras()),
        ("pettingzoo:MODULE", "any parallel env of PettingZoo, as pettingzoo:butterfly.pistonball_v6"),
        ("package.module:make_env", "a custom env, see docs/environments.md"),
    ):
        listings.append(EnvListing(env_id, "its own", "its own", "its own", "no", install_command_for(env_id), about))
    return listings


def _gymnasium_extras() -> str:
    """Return which of Gymnasium's envs need an extra, and the command if it is missing."""
    texts = []
    for env_id, kin in (("gymnasium:LunarLander-v3", "Box2D's"), ("gymnasium:HalfCheetah-v5", "MuJoCo's")):
        extra = families.extra_of(env_id)
        assert extra is not None
        missing = install_command_for(env_id)
        texts.append(f"{kin}, as {env_id}, need the extra {extra[0]}" + (f" (missing: {missing})" if missing else ""))
    return "; ".join(texts)


def install_command_for(env_id: str) -> str:
    """Return the pip command for the missing extra of an env; empty if it is installed."""
    extra = missing_extra(env_id)
    return install_command(extra) if extra else ""


def _listing(spec: EnvSpec, about: str) -> EnvListing:
    return EnvListing(
        spec.id,
        _describe_observation(spec.observation),
        _describe_action(spec.action),
        str(spec.num_agents),
        "yes" if spec.savable else "no",
        install_command_for(spec.id),
        about,
    )


def _describe_observation(observation: ObservationSpec) -> str:
    parts = [f"{part.name} {'x'.join(map(str, part.shape))} {part.dtype}" for part in observation.parts]
    return " + ".join(parts)


def _describe_action(action: ActionSpec) -> str:
    numbers = [plural(len(action.low), "number")] if action.low else []
    choices = [" x ".join(str(size) for size in action.sizes) + " choices"] if action.sizes else []
    return " + ".join(choices + numbers)
