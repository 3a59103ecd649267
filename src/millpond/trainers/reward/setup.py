"""Set up a run: open, audit and split its recorded episodes; build and fit its networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from millpond.config import RewardRecipe
from millpond.data import AuditFinding, DataError, Episodes, audit, refuse_unfit
from millpond.data.audit import split_episodes
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural, sentence
from millpond.learners import QNetwork, build_q_network
from millpond.learners.sac import SACActor
from millpond.planner.reward.numbers import Dataset, dataset_of, open_data, open_training_data
from millpond.rewards.batches import recorded_inputs
from millpond.rewards.network import RewardInputs, RewardNetwork, reset_parameters
from millpond.store import Checkpoint, Run, RunError
from millpond.trainers.common.session import Player, open_run

Integers = np.ndarray[Any, np.dtype[np.int64]]
AGENT_HIDDEN_SIZE = 256


@dataclass(frozen=True)
class RecordedData:
    """Recorded episodes with the indices of training and held-out episodes."""

    data: Episodes
    training: Integers
    held_out: Integers
    others: Episodes | None  # of another task
    dataset: Dataset  # its sizes, for the plan

    @cached_property
    def findings(self) -> list[AuditFinding]:
        """Findings of the audit, which runs once."""
        return audit(self.data)

    def describe(self) -> list[str]:
        """Summary of the data for the console."""
        data = self.data
        text = (
            f"data: {data.path}, {plural(len(data), 'episode')} with {plural(data.total_steps, 'step')}; "
            f"{len(self.training):,} to train on, {len(self.held_out):,} held out"
        )
        failed = len(data) - len(self.training) - len(self.held_out)
        if failed:
            text += f", {failed:,} left out because they failed"
        if self.others is not None:
            text += f"; {plural(len(self.others), 'episode')} of another task from {self.others.path}"
        return sentence(f"{text}.", 0)


def open_reward_run(name: str, run_dir: str) -> tuple[RewardRecipe, Run]:
    """Open a run that has a reward network."""
    loaded, run = open_run(name, run_dir)
    recipe = loaded.recipe
    if not isinstance(recipe, RewardRecipe):
        raise RunError(f"run {run.name!r} is of kind {recipe.kind}; only runs of kind reward hold a reward network")
    return recipe, run


def open_recorded(recipe: RewardRecipe) -> RecordedData:
    """Open and check all data of a run; errors name the key and a fix. Vectors are read here, once."""
    data = open_training_data(recipe)
    refuse_unfit(data, recipe.reward.objective)
    others = None
    if recipe.reward.negatives is not None:
        others = open_data(recipe, recipe.reward.negatives)
        _check_other_task(recipe, data, others)
    training, held_out = split_episodes(
        data, recipe.reward.objective, recipe.data.holdout, recipe.data.held_out, recipe.seed
    )
    data.load_vectors()
    return RecordedData(data, training, held_out, others, dataset_of(recipe, data))


def prepare_recorded(recipe: RewardRecipe) -> RecordedData | None:
    """Open and audit all data of a run; None in full mode, which learns from its own episodes."""
    if recipe.acts:
        return None
    recorded = open_recorded(recipe)
    audit_recorded(recipe, recorded)
    return recorded


def audit_recorded(recipe: RewardRecipe, recorded: RecordedData) -> list[AuditFinding]:
    """Return the warnings of the audit; refuse broken data, and a clock column for progress or success."""
    for finding in recorded.findings:
        if finding.code == "clock-column" and recipe.reward.objective in ("progress", "success"):
            columns = ",".join((*recipe.data.drop_columns, *finding.where))
            raise DataError(
                f"{recorded.data.path}: {finding.what}; with reward.objective={recipe.reward.objective} the network would "
                f"learn only to read the time from it; set data.drop_columns=[{columns}]"
            )
        if finding.severity == "error":
            raise DataError(f"{recorded.data.path}: {finding.what}: {finding.meaning}; {finding.fix}")
    return [finding for finding in recorded.findings if finding.severity == "warning"]


def _check_other_task(recipe: RewardRecipe, data: Episodes, others: Episodes) -> None:
    if recipe.reward.objective != "progress":
        raise DataError(
            f"reward.negatives={recipe.reward.negatives} requires reward.objective=progress, not "
            f"{recipe.reward.objective}; set reward.negatives=null"
        )
    if others.columns != data.columns or recorded_inputs(others).images != recorded_inputs(data).images:
        raise DataError(
            f"reward.negatives={recipe.reward.negatives} has the observations {list(others.fields)} with "
            f"{len(others.columns)} numbers, {data.path} has {list(data.fields)} with {len(data.columns)}; episodes of "
            f"another task must have the same; use other episodes or set data.observation_keys"
        )


def make_network(recipe: RewardRecipe, inputs: RewardInputs, seed: int) -> RewardNetwork:
    """Build the reward network of a recipe, initialised from one seed."""
    reward = recipe.reward
    network = RewardNetwork(
        reward.objective, inputs, reward.hidden_size, normalize=reward.normalize, clip=reward.normalize_clip
    )
    reset_parameters(network, torch.Generator().manual_seed(seed))
    return network


def fit_network(network: RewardNetwork, recorded: RecordedData) -> None:
    """Set the normaliser to exact statistics of the training episodes, and the output scale to their returns."""
    data, episodes = recorded.data, recorded.training
    if network.normalizer is not None:
        network.normalizer.set_moments(*data.moments(episodes), count=int(data.lengths[episodes].sum()))
    if data.returns is not None and network.uses_transitions:
        network.set_scale(data.returns[episodes] / data.lengths[episodes])


def make_player(spec: EnvSpec, generator: torch.Generator | None = None) -> SACActor | QNetwork:
    """Build the acting network of full mode: SAC's actor for continuous actions, DQN's network for discrete ones."""
    if spec.action.kind == "discrete":
        return build_q_network(spec.observation, spec.action, hidden_size=AGENT_HIDDEN_SIZE, generator=generator)
    return SACActor(spec.observation, spec.action, AGENT_HIDDEN_SIZE)


def reward_player(recipe: RewardRecipe, spec: EnvSpec, checkpoint: Checkpoint) -> Player:
    """The agent of a run in full mode."""
    return Player(make_player(spec), weights="agent", greedy=True)
