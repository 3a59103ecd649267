"""Evaluate a learned reward: on held-out episodes beside baselines, and on any recorded episodes as scores or a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millpond.config import RewardRecipe
from millpond.data import DataError, Episodes, open_episodes
from millpond.errors import MillpondError
from millpond.formatting import plural, table
from millpond.record import Counters, show_seconds
from millpond.record.jsonlines import HELD_OUT
from millpond.rewards.batches import recorded_inputs, step_batch
from millpond.rewards.metrics import METRICS, JudgedEpisode, judge_by_baselines, measure
from millpond.rewards.network import TRANSITION_OBJECTIVES, RewardInputs, RewardNetwork
from millpond.store import RunError
from millpond.store.parts import require_fitting_weights
from millpond.trainers.common.play import Evaluation
from millpond.trainers.reward.setup import RecordedData, make_network, open_reward_run

CHUNK, IMAGE_CHUNK = 4096, 64  # steps per forward pass, without images and with them
Floats = np.ndarray[Any, np.dtype[np.float32]]
DEFAULT_PLOTTED = 4  # episodes in a picture unless some are selected


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


@dataclass(frozen=True)
class RewardScores:
    """A reward for every step of every episode. `values` are those of states, for progress and success."""

    objective: str
    updates: int
    names: tuple[str, ...]
    rewards: list[Floats]
    values: list[Floats] | None
    truths: list[Floats] | None


def score_run(name: str, path: str, *, best: bool = False, run_dir: str = "runs") -> RewardScores:
    """Predict the rewards of all episodes of a file with the reward network of a run."""
    recipe, run = open_reward_run(name, run_dir)
    checkpoint = run.checkpoint(best=best)
    if "reward" not in checkpoint.weights:
        raise RunError(f"{checkpoint.path} has no weights of 'reward'; it has {sorted(checkpoint.weights)}")
    settings = recipe.data
    data = open_episodes(
        path,
        settings.observation_keys,
        settings.images,
        drop_columns=settings.drop_columns,
        memory_bytes=settings.memory_bytes,
    )
    if data.action is None and recipe.reward.objective in TRANSITION_OBJECTIVES:
        raise DataError(
            f"{path}: {data.missing_actions} is missing, and the reward r(s, a, s') of run {run.name!r} needs the actions; "
            f"score it with a run of reward.objective=progress"
        )
    inputs = recorded_inputs(data)
    if data.discrete:  # the file may lack some actions that the run was trained on
        trained_actions = _trained_actions(checkpoint.weights["reward"], inputs, recipe)
        if data.num_actions > trained_actions:
            raise DataError(f"{path} has {data.num_actions} actions, run {run.name!r} was trained on {trained_actions}")
        inputs = replace(inputs, action=trained_actions)
    network = make_network(recipe, inputs, seed=0)
    require_fitting_weights({"reward": network}, checkpoint.weights, f"run {run.name!r}, checkpoint {checkpoint.path}")
    try:
        network.load_state_dict(checkpoint.weights["reward"])
    except RuntimeError:
        raise DataError(
            f"{path} has observations of {plural(len(data.columns), 'number')} ({', '.join(data.fields)}) and actions "
            f"{data.action}, which is not what run {run.name!r} was trained on ({settings.path})"
        ) from None
    network.eval()
    judged = [judge_episode(network, data, episode, torch.device("cpu")) for episode in range(len(data))]
    values = [value for _, value in judged if value is not None]
    return RewardScores(
        recipe.reward.objective,
        checkpoint.updates,
        data.names,
        [reward for reward, _ in judged],
        values or None,
        [data.rewards(episode).astype(np.float32) for episode in range(len(data))] if data.has_rewards else None,
    )


def _trained_actions(weights: Mapping[str, Any], inputs: RewardInputs, recipe: RewardRecipe) -> int:
    """Number of discrete actions of a run, from the width of its first layer; irrelevant for values of states."""
    if recipe.reward.objective not in TRANSITION_OBJECTIVES:
        return inputs.action
    first = weights.get("layers.0.weight")
    if first is None or first.dim() != 2:
        raise RunError("the checkpoint has no matrix reward/layers.0.weight, so it is not that of a reward network")
    width = int(first.shape[1])
    return width - 2 * inputs.numbers - recipe.reward.hidden_size * len(inputs.images)


def parse_episodes(text: str | None, count: int) -> list[int]:
    """Parse `0,2,5` as episode indices; the first few if there is no text."""
    if text is None:
        return list(range(min(DEFAULT_PLOTTED, count)))
    try:
        selected = [int(part) for part in text.split(",")]
    except ValueError:
        raise MillpondError(f"--episodes {text!r} is not a list of numbers such as 0,2,5") from None
    out_of_range = [number for number in selected if not 0 <= number < count]
    if out_of_range:
        raise MillpondError(f"--episodes names episode {out_of_range[0]}; the file has {count:,}, counted from 0")
    return selected


def write_scores(scores: RewardScores, path: Path) -> None:
    """Write an .npz with `rewards`, `lengths`, `names` (no pickle), or an .hdf5 with one group per episode."""
    if path.suffix not in (".npz", ".hdf5", ".h5"):
        raise MillpondError(f"--out {path} must end in .npz, .hdf5 or .h5")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {
            "rewards": np.concatenate(scores.rewards),
            "lengths": np.array([len(reward) for reward in scores.rewards]),
            "names": np.array(scores.names),
        }
        if scores.values is not None:
            arrays["values"] = np.concatenate(scores.values)
        np.savez(path, **arrays)
        return
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs["objective"], file.attrs["updates"] = scores.objective, scores.updates
        for number, (name, reward) in enumerate(zip(scores.names, scores.rewards, strict=True)):
            group = file.create_group(f"episode_{number}")
            group.attrs["name"] = name
            group["reward"] = reward
            if scores.values is not None:
                group["value"] = scores.values[number]


def draw_scores(scores: RewardScores, episodes: Sequence[int], path: Path) -> None:
    """Plot reward and cumulative reward over time, one row per episode, as PNG or SVG."""
    if path.suffix not in (".png", ".svg"):
        raise MillpondError(f"--plot {path} must end in .png or .svg")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(episodes), 2, figsize=(10, 2.2 * len(episodes) + 0.6), squeeze=False, layout="constrained"
    )
    for row, episode in zip(axes, episodes, strict=True):
        curves = [("learned", scores.rewards[episode], "C0")]
        if scores.truths is not None:
            curves.append(("recorded", scores.truths[episode], "C7"))
        for label, reward, colour in reversed(curves):
            row[0].plot(reward, color=colour, linewidth=1, label=label)
            row[1].plot(np.cumsum(reward, dtype=np.float64), color=colour, linewidth=1, label=label)
        row[0].set_ylabel(scores.names[episode], fontsize=8)
    axes[0, 0].set_title("reward per step")
    axes[0, 1].set_title("cumulative reward")
    axes[0, 1].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("steps")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
