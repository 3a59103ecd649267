"""What `millpond envs` lists: every id, its spaces, its agents, and whether its extra is installed."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.envs import atari, minatar
from millpond.envs.families import install_command, missing_extra
from millpond.envs.registry import BUILT_IN, describe
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.plurals import plural


@dataclass(frozen=True)
class Row:
    """One line of the list, all text."""

    id: str
    observation: str
    action: str
    agents: str
    savable: str
    needs: str  # the pip command for what is missing; empty when all is there
    about: str


ABOUT = {
    "grid": "agents forage: ore, batteries, hearts; built in, millions of steps a second",
    "recall": "built in: remember a cue for 8 to 32 steps",
    "truncation": "built in: its value is right only when truncation bootstraps",
    "mettagrid": "the real MettaGrid: the forage scenario, or a config of your own",
}


def missing(env_id: str) -> str:
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


def row(spec: EnvSpec, about: str) -> Row:
    return Row(
        spec.id,
        describe_observation(spec.observation),
        describe_action(spec.action),
        str(spec.num_agents),
        "yes" if spec.savable else "no",
        missing(spec.id),
        about,
    )


def list_envs(*, games: bool = False) -> list[Row]:
    """All environments with their default options. Atari's and MinAtar's games one by one only if asked."""
    rows = [row(describe(env_id, {}), ABOUT[env_id]) for env_id in BUILT_IN]
    minatar_games = list(minatar.GAMES) if games else ["breakout"]
    atari_games = sorted(atari.MINIMAL_ACTIONS) if games else ["gravitar"]
    rows += [row(describe(f"minatar:{game}", {}), f"one of {len(minatar.GAMES)} games") for game in minatar_games]
    rows += [row(describe(f"atari:{g}", {}), f"one of {len(atari.MINIMAL_ACTIONS)} games") for g in atari_games]
    for env_id, about in (
        ("gymnasium:ID", "any env of Gymnasium's registry, as gymnasium:CartPole-v1"),
        ("pettingzoo:MODULE", "any parallel env of PettingZoo, as pettingzoo:butterfly.pistonball_v6"),
        ("package.module:make_env", "your own env, see docs/environments.md"),
    ):
        rows.append(Row(env_id, "its own", "its own", "its own", "no", missing(env_id), about))
    return rows
