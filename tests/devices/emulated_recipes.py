"""Every recipe's preset `debug`, its resume and its evaluation on the emulated device. Run by test_emulated.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millpond
from millpond.config import load
from millpond.config.check import flatten
from millpond.devices import has_float64, to_device
from millpond.devices.emulated import refusing_float64, register
from millpond.policies.normalizer import Normalizer
from millpond.store import Run

register()
NEEDS = {  # recipe: the module of its environment
    "atari": "ale_py", "mixture-gravitar": "ale_py", "mixture-gravitar-best": "ale_py", "minatar": "minatar",
    "mixture-minatar": "minatar", "mixture": "minatar", "mixture-best": "minatar", "metta-2026": "mettagrid",
    "mettagrid": "mettagrid", "mujoco": "mujoco", "multiagent": "pettingzoo", "puffer-metta": "mettagrid",
}  # fmt: skip
QUICK = ("grid", "mixture", "reward-online")
RECIPES = (
    "atari", "grid", "gym", "metta", "metta-2026", "mettagrid", "minatar", "mixture", "mixture-best", "mixture-gravitar",
    "mixture-gravitar-best", "mixture-minatar", "mixture-recall", "mixture-seed", "mujoco", "multiagent", "puffer-metta",
    "reward", "reward-online",
)  # fmt: skip
LENGTHS = ("mixture.total_frames", "reward.epochs")  # that a resume doubles, if the recipe has them


def test_all_recipes_are_here() -> None:
    folder = Path(millpond.__file__).parent / "recipes"
    assert {path.stem for path in folder.glob("*.yaml")} == {*RECIPES, "reward-libero"}  # that one needs a download


def trained(recipe: str, folder: Path, **settings: Any) -> Run:
    """Train a recipe's preset `debug` on the emulated device."""
    for module in NEEDS[recipe].split() if recipe in NEEDS else ():
        pytest.importorskip(module)
    own: dict[str, Any] = {"device": "emulated", "run_dir": str(folder), "log.tensorboard": False, **settings}
    return millpond.train(recipe, preset="debug", run="run", **own)


def updates(run: Run) -> int:
    return run.checkpoint().updates


@pytest.mark.parametrize("recipe", [pytest.param(r, marks=[] if r in QUICK else pytest.mark.slow) for r in RECIPES])
def test_recipe_trains_resumes_and_is_evaluated(recipe: str, tmp_path: Path) -> None:
    run = trained(recipe, tmp_path)
    flat, done = flatten(load(run.config_path).recipe), updates(run)
    assert done > 0
    longer = {key: 2 * flat[key] for key in LENGTHS if key in flat}
    resumed = millpond.resume(run.folder, **longer, **{"trainer.total_iterations": 2})
    assert updates(resumed) > done
    if recipe == "reward":  # it has no agent
        return
    evaluation = millpond.evaluate(millpond.load(run.folder, device="emulated"), episodes=2)
    assert len(evaluation.returns) == 2
    assert np.isfinite(evaluation.mean)
    assert millpond.evaluate(millpond.load(run.folder), episodes=2).lengths[0] > 0  # on the CPU


@pytest.mark.parametrize("recipe", ["grid", pytest.param("metta", marks=pytest.mark.slow)])
def test_rows_can_stay_in_the_memory_of_the_cpu(recipe: str, tmp_path: Path) -> None:
    settings = {"trainer.cpu_offload": True, "policy.normalize_observations": True}
    assert updates(trained(recipe, tmp_path, **settings)) > 0


SLOW_ON_A_DEVICE_WITHOUT_FLOAT64 = ("metta", "mujoco", "mixture", "reward")


@pytest.mark.parametrize(
    "recipe",
    ["gym", "reward-online", *(pytest.param(r, marks=pytest.mark.slow) for r in SLOW_ON_A_DEVICE_WITHOUT_FLOAT64)],
)
def test_recipe_trains_on_a_device_without_float64_and_is_loaded_on_one_with_it(recipe: str, tmp_path: Path) -> None:
    normalised = {"policy.normalize_observations": True, "ppo.normalize_values": True} if recipe == "gym" else {}
    with refusing_float64():
        run = trained(recipe, tmp_path, **normalised)
    if recipe != "reward":
        assert np.isfinite(millpond.evaluate(millpond.load(run.folder), episodes=1).mean)


def test_running_means_become_float32_only_where_there_is_no_float64() -> None:
    device = torch.device("emulated")
    assert has_float64(device)
    assert has_float64(torch.device("cuda"))
    assert not has_float64(torch.device("mps"))
    assert to_device(Normalizer(2), device).mean.dtype == torch.float64
    with refusing_float64():
        moved = to_device(Normalizer(2), device)
        assert moved.mean.dtype == moved.count.dtype == torch.float32
        moved.update(torch.tensor([[1.0, 4.0], [3.0, 4.0]]).to(device))
        assert moved.mean.tolist() == [2.0, 4.0]
