"""The preset `debug` of every recipe: one of every level at tiny sizes, in seconds.

The sizes are derived from the recipe, so that they also fit the agents, horizon, groups and environment of a user's file.
Keys that the user set for this run are `fixed`: they keep their values, and the other sizes are chosen to fit.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, lcm
from typing import Any

from millpond.config.check import flatten
from millpond.config.mixture import SINGLE, frame_skip
from millpond.config.recipe import Recipe
from millpond.config.rules import Values
from millpond.envs.families import family_of
from millpond.kinds import KINDS
from millpond.sizes import rows_per_round

DEBUG = "debug"

ENVS = 4
ROWS = 8
HORIZON = 64
EPISODE = 50  # env steps
HIDDEN = 16


def debug_settings(recipe: Recipe, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return the overrides that make a run of this recipe tiny, apart from keys in `fixed`."""
    settings: dict[str, Any] = {"trainer.total_iterations": 1, "eval.episodes": 1}
    if recipe.policy.target is None:  # a custom policy may need its width
        settings["policy.hidden_size"] = min(recipe.policy.hidden_size, HIDDEN)
    if _can_truncate_episodes(recipe.env.id):
        settings["env.max_steps"] = min(recipe.env.max_steps or EPISODE, EPISODE)
    values = flatten(recipe)
    settings |= KINDS[recipe.kind].debug_sizes.load()(values, fixed)
    return {key: value for key, value in settings.items() if key not in fixed and value != values[key]}


def _can_truncate_episodes(env_id: str) -> bool:
    family = family_of(env_id)
    return family is not None and family.name not in ("recall", "pettingzoo")


def ppo_debug_sizes(values: Values, fixed: Collection[str]) -> dict[str, Any]:
    """One iteration with one epoch of one minibatch: whole rounds of a few envs, at least `ROWS` rows."""
    settings: dict[str, Any] = {
        "trainer.update_epochs": 1,
        "trainer.replay_ratio": None,
        "trainer.max_minibatch_size": None,
        "trainer.compile": False,
    }
    settings["vector.trainer_share"] = 0.0

    def choose(key: str, value: Any) -> Any:
        settings[key] = value
        return values[key] if key in fixed else value

    workers = choose("trainer.num_workers", 1)
    groups, agents, unit = values["trainer.async_factor"], values["env.num_agents"], values["trainer.batch_unit"]
    horizon = choose("trainer.bptt_horizon", min(values["trainer.bptt_horizon"], HORIZON))
    if values["trainer.num_envs"] is not None:
        envs = choose("trainer.num_envs", _multiple(lcm(workers, groups), ENVS))
    else:
        per_group = _multiple(workers, ENVS)
        target = choose("trainer.forward_pass_minibatch_target_size", per_group * agents)
        envs = target // agents * groups
    one_round = max(1, rows_per_round(envs, agents, unit)) * horizon
    minibatch = values["trainer.minibatch_size"] if "trainer.minibatch_size" in fixed else one_round
    if values["trainer.batch_size"] == "auto":
        batch = one_round
    else:
        batch = choose("trainer.batch_size", _multiple(lcm(one_round, minibatch), ROWS * horizon))
    settings["trainer.minibatch_size"] = batch
    settings["trainer.total_timesteps"] = max(batch, values["trainer.total_timesteps"])
    return settings


def mixture_debug_sizes(values: Values, fixed: Collection[str]) -> dict[str, Any]:
    """One round: one collection per agent of two agents, one update of the BigAgent."""
    settings: dict[str, Any] = {
        "mixture.collections_per_round": 1,
        "mixture.big_updates": 1,
        "dqn.replay_ratio": None,
        "pqn.num_minibatches": 1,
        "pqn.update_epochs": 1,
    }

    def choose(key: str, value: Any) -> int:
        settings[key] = value
        return int(values[key] if key in fixed else value)

    agents = choose("mixture.agents", 1 if values["mixture.mode"] in SINGLE else min(values["mixture.agents"], 2))
    envs, steps = choose("pqn.num_envs", 4), choose("pqn.num_steps", 8)
    batch = choose("dqn.batch_size", 8)
    n_step = choose("dqn.n_step", min(values["dqn.n_step"], 3))
    if values["dqn.n_step_from"] is not None:
        n_step = max(n_step, choose("dqn.n_step_from", min(values["dqn.n_step_from"], 3)))
    block = choose("dqn.block_steps", min(values["dqn.block_steps"], 8))
    if values["policy.core"] != "none":  # a batch is whole blocks
        burn_in = choose("dqn.burn_in", min(values["dqn.burn_in"], block // 2))
        batch = choose("dqn.batch_size", 2 * (block - burn_in))
    lanes = agents * envs
    if values["mixture.mode"] == "live" and values["mixture.own_fraction"]:
        settings["mixture.own_fraction"] = 1 / (agents + 1)  # as many envs as one agent has
        lanes += envs
    if values["mixture.epsilon_ladder"] is not None:
        settings["mixture.epsilon_ladder"] = values["mixture.epsilon_ladder"][:agents]
    settings["mixture.pond_transitions"] = 2 * envs * steps
    deepest = max(2 * steps, values["env.frame_stack"] + n_step + 1)
    settings["mixture.big_pond_transitions"] = max(256, batch + n_step, block, lanes * deepest)
    settings["mixture.total_frames"] = 2 * lanes * steps * frame_skip(values)
    return settings


def reward_debug_sizes(values: Values, fixed: Collection[str]) -> dict[str, Any]:
    """One batch; in full mode also a few short episodes for the agent to learn from."""
    settings: dict[str, Any] = dict.fromkeys(
        ("reward.epochs", "reward.cycles", "reward.iterations", "reward.train_batches"), 1
    )
    settings["reward.episodes_per_batch"] = min(values["reward.episodes_per_batch"], 4)
    settings["reward.steps_per_episode"] = min(values["reward.steps_per_episode"], 64)
    if values["reward.reward_only"]:
        return settings
    settings |= {
        "agent.num_envs": 1,
        "agent.warmup_steps": 10,
        "agent.steps_per_iteration": 2,
        "agent.batch_size": 8,
        "agent.test_episodes": 1,
    }
    if _can_truncate_episodes(values["env.id"]):
        settings["env.max_steps"] = 5  # so that episodes end within the warm-up: only whole episodes have returns
    return settings


def _multiple(unit: int, at_least: int) -> int:
    return unit * ceil(at_least / unit)
