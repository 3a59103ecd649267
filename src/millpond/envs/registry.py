"""Environments by id: what there is, what it shows, and how to make it.

    grid   recall   truncation   mettagrid   gymnasium:ID   pettingzoo:MODULE   atari:GAME   minatar:GAME
    package.module:make_env   an env or an environment of one's own

`describe` is cheap: a plan can count bytes with it. `make_env_batch` may be called in a worker process; its arguments are
plain values, and nothing here imports torch.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from millpond.envs import families
from millpond.envs.adapters import atari, minatar
from millpond.envs.env_batch import Buffers, EnvBatch, EnvError
from millpond.envs.families import install_command, missing_extra
from millpond.envs.options import parse_options
from millpond.envs.reward_wrappers import EpisodicEnvs, RewardEnvs, RewardOptions
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.plurals import plural

BUILT_IN = tuple(family.name for family in families.FAMILIES.values() if ":" not in family.form)
FAMILIES = tuple(family.name for family in families.FAMILIES.values() if family.form.startswith(f"{family.name}:"))
REWARD_NAMES = tuple(f.name for f in fields(RewardOptions))


def known_ids() -> list[str]:
    """Every id that can be named beforehand; of the families with a name to fill in, the form."""
    from millpond.envs.adapters import atari, minatar

    games = [f"minatar:{game}" for game in minatar.GAMES] + [f"atari:{game}" for game in sorted(atari.MINIMAL_ACTIONS)]
    return [*BUILT_IN, *games, "gymnasium:ID", "pettingzoo:MODULE", "package.module:make_env"]


def reward_options(env_id: str, options: Mapping[str, Any]) -> RewardOptions:
    """The options that every environment has."""
    return parse_options(RewardOptions, {k: v for k, v in options.items() if k in REWARD_NAMES}, env_id=env_id)


def describe(env_id: str, options: Mapping[str, Any]) -> EnvSpec:
    """What an environment of this id and these options shows and takes. Where only the env itself can tell (gymnasium,
    pettingzoo, own envs, own MettaGrid configs), one is made and closed; an error that its code raises says where."""
    reward_options(env_id, options)
    own = {name: value for name, value in options.items() if name not in REWARD_NAMES}
    family, _, name = env_id.partition(":")
    if env_id == "grid":
        from millpond.envs.grid.rules import describe as describe_grid

        return describe_grid(own)
    if env_id == "recall":
        from millpond.envs.recall import describe as describe_recall

        return describe_recall(own)
    if env_id == "truncation":
        from millpond.envs.truncation import describe as describe_truncation

        return describe_truncation(own)
    if env_id == "mettagrid":
        from millpond.envs.mettagrid.scenario import describe as describe_mettagrid

        return describe_mettagrid(own)
    if family == "atari":
        from millpond.envs.adapters.atari import describe as describe_atari

        return describe_atari(name, own)
    if family == "minatar":
        from millpond.envs.adapters.minatar import describe as describe_minatar

        return describe_minatar(name, own)
    try:
        env_batch = make_env_batch(env_id, 1, options)
        env_batch.close()
    except MillpondError:
        raise
    except Exception as error:
        raise EnvError(f"env {env_id!r} cannot be made: {describe_error(error)}") from error
    return env_batch.spec


def make_env_batch(env_id: str, num_envs: int, options: Mapping[str, Any], buffers: Buffers | None = None) -> EnvBatch:
    """An environment of `num_envs` envs that writes into `buffers`, or into buffers of its own where none are given."""
    if num_envs < 1:
        raise EnvError(f"env {env_id!r}: num_envs={num_envs} must be at least 1")
    rewards = reward_options(env_id, options)
    own = {name: value for name, value in options.items() if name not in REWARD_NAMES}
    env_batch = _make(env_id, num_envs, own, buffers)
    if rewards.changes:
        env_batch = RewardEnvs(env_batch, rewards)
    return EpisodicEnvs(env_batch) if rewards.episodic else env_batch


def _make(env_id: str, num_envs: int, own: Mapping[str, Any], buffers: Buffers | None) -> EnvBatch:
    family, _, name = env_id.partition(":")
    if env_id == "grid":
        from millpond.envs.grid.envs import GridEnvs

        return GridEnvs(num_envs, own, buffers)
    if env_id == "recall":
        from millpond.envs.recall import RecallEnvs

        return RecallEnvs(num_envs, own, buffers)
    if env_id == "truncation":
        from millpond.envs.truncation import TruncationEnvs

        return TruncationEnvs(num_envs, own, buffers)
    if env_id == "mettagrid":
        from millpond.envs.mettagrid.envs import MettaGridEnvs

        return MettaGridEnvs(num_envs, own, buffers)
    if family == "atari":
        from millpond.envs.adapters.atari import AtariEnvs

        return AtariEnvs(name, num_envs, own, buffers)
    if family == "minatar":
        from millpond.envs.adapters.minatar import MinAtarEnvs

        return MinAtarEnvs(name, num_envs, own, buffers)
    if family == "gymnasium" and name:
        from millpond.envs.adapters.gymnasium import GymnasiumEnvs, LoopOptions, gymnasium_maker

        loop = parse_options(LoopOptions, own, env_id=env_id)
        return GymnasiumEnvs(env_id, gymnasium_maker(name, loop), num_envs, own, buffers)
    if family == "pettingzoo" and name:
        from millpond.envs.adapters.gymnasium import LoopOptions
        from millpond.envs.adapters.pettingzoo import PettingZooEnvs, pettingzoo_maker

        loop = parse_options(LoopOptions, own, env_id=env_id)
        return PettingZooEnvs(env_id, pettingzoo_maker(name, loop), num_envs, own, buffers)
    if name:
        from millpond.envs.adapters.custom import custom_env

        return custom_env(env_id, num_envs, own, buffers)
    raise unknown(env_id)


def unknown(env_id: str) -> EnvError:
    """What to say of an id that there is not."""
    import difflib

    near = difflib.get_close_matches(env_id, [*BUILT_IN, *FAMILIES], n=1)
    forms = [*BUILT_IN, *(f"{family}:NAME" for family in FAMILIES)]
    meant = f"; did you mean {near[0] if near[0] in BUILT_IN else near[0] + ':NAME'!r}?" if near else "."
    return EnvError(
        f"there is no env {env_id!r}{meant} Ids are {', '.join(forms)}, or package.module:make_env for one of your own"
    )


def prepare(env_id: str, options: Mapping[str, Any]) -> None:
    """Do once what would otherwise be done in every worker: compile the grid environment into numba's cache on disk."""
    if env_id == "grid":
        import numpy as np

        env_batch = make_env_batch(env_id, 1, options)
        env_batch.reset(np.zeros(1, np.uint64))
        env_batch.step(0, 1)
        env_batch.close()


def describe_error(error: Exception) -> str:
    """An error in one line: type, message, notes, and the line of somebody else's code that raised it."""
    notes = "; ".join(getattr(error, "__notes__", []))
    text = str(error) if isinstance(error, MillpondError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, ModuleNotFoundError) and error.name:
        text += f"; install it, perhaps with: pip install {error.name.split('.')[0]}"
    frames = [] if isinstance(error, MillpondError) else traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
    return f"{text}{''.join(f' ({part})' for part in (place, notes) if part)}"


# -- What `millpond envs` lists: every id, its spaces, its agents, and whether its extra is installed.


@dataclass(frozen=True)
class EnvListing:
    """One line of the list, all text."""

    id: str
    observation: str
    action: str
    agents: str
    savable: str
    needs: str  # the pip command for what is install_command_for; empty when all is there
    about: str


ABOUT = {
    "grid": "agents forage: ore, batteries, hearts; built in, millions of steps a second",
    "recall": "built in: remember a cue for 8 to 32 steps",
    "truncation": "built in: its value is right only when truncation bootstraps",
    "mettagrid": "the real MettaGrid: the forage scenario, or a config of your own",
}


def install_command_for(env_id: str) -> str:
    """The pip command for an id's extra, or nothing when it is installed."""
    extra = missing_extra(env_id)
    return install_command(extra) if extra else ""


def describe_observation(observation: ObservationSpec) -> str:
    parts = [f"{part.name} {'x'.join(map(str, part.shape))} {part.dtype}" for part in observation.parts]
    return " + ".join(parts)


def describe_action(action: ActionSpec) -> str:
    if action.kind == "continuous":
        return plural(len(action.low), "number")
    return " x ".join(str(size) for size in action.sizes) + " choices"


def _listing(spec: EnvSpec, about: str) -> EnvListing:
    return EnvListing(
        spec.id,
        describe_observation(spec.observation),
        describe_action(spec.action),
        str(spec.num_agents),
        "yes" if spec.savable else "no",
        install_command_for(spec.id),
        about,
    )


def list_envs(*, games: bool = False) -> list[EnvListing]:
    """All environments with their default options. Atari's and MinAtar's games one by one only if asked."""
    listings = [_listing(describe(env_id, {}), ABOUT[env_id]) for env_id in BUILT_IN]
    minatar_games = list(minatar.GAMES) if games else ["breakout"]
    atari_games = sorted(atari.MINIMAL_ACTIONS) if games else ["gravitar"]
    listings += [
        _listing(describe(f"minatar:{game}", {}), f"one of {len(minatar.GAMES)} games") for game in minatar_games
    ]
    listings += [
        _listing(describe(f"atari:{g}", {}), f"one of {len(atari.MINIMAL_ACTIONS)} games") for g in atari_games
    ]
    for env_id, about in (
        ("gymnasium:ID", "any env of Gymnasium's registry, as gymnasium:CartPole-v1"),
        ("pettingzoo:MODULE", "any parallel env of PettingZoo, as pettingzoo:butterfly.pistonball_v6"),
        ("package.module:make_env", "your own env, see docs/environments.md"),
    ):
        listings.append(EnvListing(env_id, "its own", "its own", "its own", "no", install_command_for(env_id), about))
    return listings
