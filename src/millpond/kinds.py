"""The table of the kinds of recipe: everything that a kind consists of, one row per kind.

A kind is added by writing its modules and a row here; nothing else asks which kind a recipe is. Rows name objects by path,
and `load` imports them when they are needed, so the table itself imports nothing and a plan never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from millpond.bench.run import KindBench
    from millpond.config import Recipe
    from millpond.config.rules import Rule
    from millpond.envs.spec import EnvSpec
    from millpond.planner.kind import KindPlanner, KindText
    from millpond.report.facts import KindReport
    from millpond.store import Checkpoint
    from millpond.trainers.common.policy import LoadedPolicy as LoadedPolicy
    from millpond.trainers.common.session import Player, Trainer
    from millpond.trainers.reward.setup import RecordedData

T = TypeVar("T")


@dataclass(frozen=True)
class Lazy(Generic[T]):
    """An object named by its path, `package.module:name`, and imported by `load`."""

    path: str

    def load(self) -> T:
        module, _, name = self.path.partition(":")
        loaded: T = getattr(import_module(module), name)
        return loaded


@dataclass(frozen=True)
class Kind:
    """One row of the table. Functions take the recipe (and plan) of their own kind."""

    name: str
    job: str  # what a run of it does, after the name of a recipe
    several_agents: bool  # an env may have more than one agent

    # config
    recipe: Lazy[type[Recipe]]
    rules: Lazy[Sequence[Rule]]
    debug_sizes: Lazy[Callable[[Mapping[str, Any], Collection[str]], dict[str, Any]]]

    # planner
    planner: Lazy[KindPlanner]
    text: Lazy[KindText]

    # trainers
    trainer: Lazy[Callable[..., Trainer]]
    player: Lazy[Callable[[Any, EnvSpec, Checkpoint], Player]]  # the network that plays for a run
    prepare: Lazy[Callable[[Any], RecordedData | None]] | None  # what is checked before a run has a folder

    bench: Lazy[KindBench]
    report: Lazy[KindReport]


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="ppo",
            job="learns by acting, on rows of its own policy",
            several_agents=True,
            recipe=Lazy("millpond.config.ppo:PPORecipe"),
            rules=Lazy("millpond.config.ppo:RULES"),
            debug_sizes=Lazy("millpond.config.debug:ppo_debug_sizes"),
            planner=Lazy("millpond.planner.ppo:PLANNER"),
            text=Lazy("millpond.planner.ppo.text:TEXT"),
            trainer=Lazy("millpond.trainers.ppo.trainer:PPOTrainer"),
            player=Lazy("millpond.trainers.common.build:ppo_player"),
            prepare=None,
            bench=Lazy("millpond.bench.ppo:BENCH"),
            report=Lazy("millpond.report.page:PPO"),
        ),
        Kind(
            name="mixture",
            job="learns Q-values and replays a lake",
            several_agents=False,
            recipe=Lazy("millpond.config.mixture:MixtureRecipe"),
            rules=Lazy("millpond.config.mixture_rules:RULES"),
            debug_sizes=Lazy("millpond.config.debug:mixture_debug_sizes"),
            planner=Lazy("millpond.planner.mixture:PLANNER"),
            text=Lazy("millpond.planner.mixture.text:TEXT"),
            trainer=Lazy("millpond.trainers.mixture.trainer:MixtureTrainer"),
            player=Lazy("millpond.trainers.mixture.agents:mixture_player"),
            prepare=None,
            bench=Lazy("millpond.bench.mixture:BENCH"),
            report=Lazy("millpond.report.page:MIXTURE"),
        ),
        Kind(
            name="reward",
            job="learns a reward from recorded episodes",
            several_agents=False,
            recipe=Lazy("millpond.config.reward:RewardRecipe"),
            rules=Lazy("millpond.config.reward:RULES"),
            debug_sizes=Lazy("millpond.config.debug:reward_debug_sizes"),
            planner=Lazy("millpond.planner.reward:PLANNER"),
            text=Lazy("millpond.planner.reward.text:TEXT"),
            trainer=Lazy("millpond.trainers.reward.trainer:RewardTrainer"),
            player=Lazy("millpond.trainers.reward.setup:reward_player"),
            prepare=Lazy("millpond.trainers.reward.setup:prepare_recorded"),
            bench=Lazy("millpond.bench.reward:BENCH"),
            report=Lazy("millpond.report.page:REWARD"),
        ),
    )
}

LOAD_POLICY: Lazy[Callable[..., LoadedPolicy]] = Lazy(
    "millpond.trainers.common.policy:load_policy"
)  # of a run of any kind
