"""Evaluation of a reward network on held-out episodes, beside baselines; the summary of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from millpond.data import Episodes
from millpond.planner.lines import table
from millpond.plurals import plural
from millpond.record import Counters, show_seconds
from millpond.record.jsonlines import HELD_OUT
from millpond.rewards.batches import step_batch
from millpond.rewards.metrics import METRICS, JudgedEpisode, judge_by_baselines, measure
from millpond.rewards.network import RewardNetwork
from millpond.trainers.common.evaluate import Evaluation
from millpond.trainers.reward.setup import RecordedData

CHUNK, IMAGE_CHUNK = 4096, 64  # steps per forward pass, without images and with them


@dataclass(frozen=True)
class HeldOutEvaluation:
    """Metrics of the learned reward and of each baseline, by name."""

    episodes: int
    learned: dict[str, float]
    baselines: dict[str, dict[str, float]]

    @property
    def score(self) -> float | None:
        return next((self.learned[name] for name in HELD_OUT if name in self.learned), None)

    def metrics(self) -> dict[str, float]:
        """Metrics of a record: held_out/NAME of the learned reward, held_out/BASELINE/NAME of the baselines."""
        metrics = {f"held_out/{name}": value for name, value in self.learned.items()}
        for baseline, values in self.baselines.items():
            metrics |= {f"held_out/{baseline}/{name}": value for name, value in values.items()}
        return metrics

    def lines(self) -> list[str]:
        """A table with one line per metric, the learned reward first."""
        rows = []
        for name, title in METRICS.items():
            columns = [self.learned, *self.baselines.values()]
            if any(name in column for column in columns):
                rows.append([title, *(f"{column[name]:.3f}" if name in column else "-" for column in columns)])
        heading = f"Held out: {plural(self.episodes, 'episode')}"
        return [heading, *table(["", "learned", *self.baselines], rows)] if rows else [heading]


@torch.no_grad()
def judge_episode(
    network: RewardNetwork, data: Episodes, episode: int, device: torch.device
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]] | None]:
    """Predicted reward [T] of each step of an episode, and, for progress and success, the value [T] of each state."""
    length = int(data.lengths[episode])
    rewards, values = [], []
    chunk = IMAGE_CHUNK if network.inputs.images else CHUNK
    for first in range(0, length, chunk):
        steps = np.arange(first, min(first + chunk, length))[None]
        batch = step_batch(data.gather(np.array([episode]), steps), network.inputs, device)
        rewards.append(network.reward(batch).cpu().numpy())
        if not network.uses_transitions:
            values.append(network.value(batch).cpu().numpy())
    return np.concatenate(rewards), np.concatenate(values) if values else None


def evaluate_reward(network: RewardNetwork, recorded: RecordedData, device: torch.device) -> HeldOutEvaluation | None:
    """Metrics on the held-out episodes; None if there are none."""
    data = recorded.data
    if not len(recorded.held_out):
        return None
    judged = []
    for episode in recorded.held_out.tolist():
        reward, value = judge_episode(network, data, episode, device)
        truth = data.rewards(episode).astype(np.float64) if data.has_rewards else None
        success = None if data.success is None else bool(data.success[episode])
        values = None if value is None else value.astype(np.float64)
        reversed_values = None if values is None else values[::-1]  # a value depends on its state alone
        judged.append(JudgedEpisode(reward.astype(np.float64), values, reversed_values, truth, success))
    training = recorded.training
    steps = float(data.lengths[training].sum())
    mean_reward = float(data.returns[training].sum()) / steps if data.returns is not None else 0.0
    by_baseline = judge_by_baselines(judged, mean_reward, float(data.lengths[training].mean()))
    others = []
    if recorded.others is not None and not network.uses_transitions:
        for episode in range(len(recorded.others)):
            _, value = judge_episode(network, recorded.others, episode, device)
            assert value is not None
            others.append(value.astype(np.float64))
    return HeldOutEvaluation(
        len(judged), measure(judged, others), {name: measure(episodes) for name, episodes in by_baseline.items()}
    )


def summarise_reward(counters: Counters, held_out: HeldOutEvaluation | None, tested: Evaluation | None) -> list[str]:
    """Summary of a finished run: held-out metrics beside the baselines, or the agent's return; updates and time."""
    lines = [] if held_out is None else held_out.lines()
    if tested is not None:
        low, high = tested.interval()
        lines.append(f"Test rollouts: return {tested.mean:.1f}, 95% interval {low:.1f} to {high:.1f}")
    return [*lines, "", f"{plural(counters.updates, 'update')} in {show_seconds(counters.seconds)}"]
