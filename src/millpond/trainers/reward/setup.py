"""The recorded episodes of a config: opened, checked against what it says of them, and split by episode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from millpond.config import RewardRecipe
from millpond.data import AuditFinding, DataError, Episodes, audit, refuse_unfit
from millpond.data.fitting import split_episodes
from millpond.envs.spec import EnvSpec
from millpond.learners import QNetwork, build_q_network
from millpond.learners.sac import SACActor
from millpond.planner.lines import sentence
from millpond.planner.reward.dataset import Dataset, dataset_of, open_data, open_training_data
from millpond.plurals import plural
from millpond.rewards.batches import inputs_of
from millpond.rewards.network import RewardInputs, RewardNetwork, reset_parameters
from millpond.store import Checkpoint
from millpond.trainers.common.kinds import Player

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class RecordedData:
    """Episodes to train on and episodes to judge by, as numbers into `data`."""

    data: Episodes
    training: Integers
    held_out: Integers
    others: Episodes | None  # of another task
    dataset: Dataset  # the same for the plan

    @cached_property
    def findings(self) -> list[AuditFinding]:
        """The audit of the data, done once."""
        return audit(self.data)

    def describe(self) -> list[str]:
        """What is trained on, in words."""
        data = self.data
        text = (
            f"data: {data.path}, {plural(len(data), 'episode')} with {plural(data.total_steps, 'step')}; "
            f"{len(self.training):,} to train on, {len(self.held_out):,} held out"
        )
        left = len(data) - len(self.training) - len(self.held_out)
        if left:
            text += f", {left:,} left out because they failed"
        if self.others is not None:
            text += f"; {plural(len(self.others), 'episode')} of another task from {self.others.path}"
        return sentence(f"{text}.", 0)


def open_recorded(recipe: RewardRecipe) -> RecordedData:
    """Open and check everything that a run will read; errors name the key and the fix. Vectors are read once, here."""
    data = open_training_data(recipe)
    refuse_unfit(data, recipe.reward.objective)
    others = None
    if recipe.reward.negatives is not None:
        others = open_data(recipe, recipe.reward.negatives)
        _check_others(recipe, data, others)
    training, held_out = split_episodes(
        data, recipe.reward.objective, recipe.data.holdout, recipe.data.held_out, recipe.seed
    )
    data.load_vectors()
    return RecordedData(data, training, held_out, others, dataset_of(recipe, data))


def prepare_recorded(recipe: RewardRecipe) -> RecordedData | None:
    """Open and audit what a run will read; None in full mode, which learns from its own episodes."""
    if recipe.acts:
        return None
    recorded = open_recorded(recipe)
    audit_recorded(recipe, recorded)
    return recorded


def audit_recorded(recipe: RewardRecipe, recorded: RecordedData) -> list[AuditFinding]:
    """Warnings of the audit. What would make the training meaningless is refused: broken data, and a clock for progress."""
    for finding in recorded.findings:
        clock = finding.code == "clock-column" and recipe.reward.objective in ("progress", "success")
        if clock:
            columns = ",".join((*recipe.data.drop_columns, *finding.where))
            raise DataError(
                f"{recorded.data.path}: {finding.what}; with reward.objective={recipe.reward.objective} the network would "
                f"read the time from it and nothing else; set data.drop_columns=[{columns}]"
            )
        if finding.severity == "error":
            raise DataError(f"{recorded.data.path}: {finding.what}: {finding.meaning}; {finding.fix}")
    return [finding for finding in recorded.findings if finding.severity == "warning"]


def _check_others(recipe: RewardRecipe, data: Episodes, others: Episodes) -> None:
    if recipe.reward.objective != "progress":
        raise DataError(
            f"reward.negatives={recipe.reward.negatives} goes with reward.objective=progress, not "
            f"{recipe.reward.objective}; set reward.negatives=null"
        )
    if others.columns != data.columns or inputs_of(others).images != inputs_of(data).images:
        raise DataError(
            f"reward.negatives={recipe.reward.negatives} has the observations {list(others.fields)} with "
            f"{len(others.columns)} numbers, {data.path} has {list(data.fields)} with {len(data.columns)}; episodes of "
            f"another task must have the same, so choose others or set data.observation_keys"
        )


# -- The networks of reward learning: the one that judges steps, and the one that an agent plays with.

PLAYER_HIDDEN = 256  # width of the agent's layers


def make_network(recipe: RewardRecipe, inputs: RewardInputs, seed: int) -> RewardNetwork:
    """The reward network of a config, from one seed."""
    reward = recipe.reward
    network = RewardNetwork(
        reward.objective, inputs, reward.hidden_size, normalize=reward.normalize, clip=reward.normalize_clip
    )
    reset_parameters(network, torch.Generator().manual_seed(seed))
    return network


def fit_network(network: RewardNetwork, recorded: RecordedData) -> None:
    """Exact statistics of the training episodes for the normaliser, and the scale of their returns."""
    data, episodes = recorded.data, recorded.training
    if network.normalizer is not None:
        network.normalizer.set_moments(*data.moments(episodes), count=int(data.lengths[episodes].sum()))
    if data.returns is not None and network.of_transitions:
        network.set_scale(data.returns[episodes] / data.lengths[episodes])


def make_player(spec: EnvSpec, generator: torch.Generator | None = None) -> SACActor | QNetwork:
    """What the agent of full mode plays with: SAC's actor for continuous actions, DQN's network for discrete ones."""
    if spec.action.kind == "discrete":
        return build_q_network(spec.observation, spec.action, hidden_size=PLAYER_HIDDEN, generator=generator)
    return SACActor(spec.observation, spec.action, PLAYER_HIDDEN)


def reward_player(recipe: RewardRecipe, spec: EnvSpec, checkpoint: Checkpoint) -> Player:
    """The agent of a run in full mode."""
    return Player(make_player(spec), weights="agent", greedy=True)
