"""The machine that a plan is for: its cores, memory and devices, the speeds measured on it, and times estimated from them.

`millpond bench` measures the speeds.
"""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from millpond.config import Recipe
from millpond.cpu import memory_bytes, usable_cores
from millpond.devices import DeviceError, is_emulated
from millpond.errors import MillpondError
from millpond.formatting import figures, plural, sentence
from millpond.kinds import KINDS
from millpond.planner.kind import Plan
from millpond.processor import cache_folder

FORMAT = 2
COUNTS = {  # settings that say how much is done, not how long each piece takes
    "mixture": {"total_frames", "collections_per_round", "big_updates", "recovery_checks", "epsilon_reset_to",
                "big_epsilon_reset_to", "epsilon_ladder"},
    "reward": {"epochs", "cycles", "iterations", "train_batches", "save_freq", "log_batches", "learning_rate"},
    "agent": {"steps_per_iteration", "warmup_steps", "test_episodes", "learning_rate", "gamma", "target_tau"},
    "vector": {"timeout", "on_crash"},
}  # fmt: skip
NAMES = {"train_big": "BigAgent"}  # of parts, in text


@dataclass(frozen=True)
class Host:
    """Cores that this process may use, and memory in bytes (0: not known)."""

    cores: int
    memory: int

    @staticmethod
    def here() -> Host:
        return Host(usable_cores(), memory_bytes())


def require_device(device: str) -> None:
    """Raise DeviceError if torch cannot use the device on this machine. torch is imported only for devices other than cpu."""
    if device == "cpu":
        return
    import torch

    if is_emulated(device):
        from millpond.devices.emulated import register

        register()
        return
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise DeviceError("device=mps: torch finds no Apple GPU (MPS) on this machine; try device=cpu")
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        built = torch.version.cuda is not None or torch.version.hip is not None
        why = "torch finds no GPU on this machine" if built else f"torch {torch.__version__} is built without CUDA"
        raise DeviceError(f"device={device}: {why}; try device=cpu")
    number = int(device.partition(":")[2] or 0)
    if number >= count:
        gpus = "one GPU, cuda:0" if count == 1 else f"{count} GPUs, cuda:0 to cuda:{count - 1}"
        raise DeviceError(f"device={device}: this machine has {gpus}; try device=cuda:{count - 1}")


@dataclass(frozen=True)
class Measured:
    """Measured speed of a recipe: seconds by part, and the sizes that they scale with.

    ppo      iteration   collect (including advantages), train, other
    mixture  round       collect, pour, learn, fill, train_big, other (including the reset)
    reward   cycle       act, train, other
    """

    machine: str
    date: str
    recipe: str
    settings: str  # what must be the same for the figures to be valid
    sizes: dict[str, float]
    seconds: dict[str, float]


def measured_path() -> Path:
    """Path of the measured speeds, in the user's cache folder: they belong to a machine, not to a folder of runs."""
    return cache_folder() / "bench.json"


def this_machine() -> str:
    """Return a name of this machine, since several machines may share a home folder."""
    return f"{socket.gethostname()}, {platform.machine()}, {Host.here().cores} cores"


def settings_of(recipe: Recipe) -> str:
    """Return the settings that determine the time of a step; numbers of steps, envs and updates are not among them."""
    decisive = KINDS[recipe.kind].planner.load().speed_settings(recipe)
    return json.dumps({"kind": recipe.kind, "device": recipe.device, **decisive}, sort_keys=True)


def speed_sections(recipe: Recipe, *names: str) -> dict[str, Any]:
    """Return sections of a recipe without counts."""
    return {name: getattr(recipe, name).model_dump(mode="json", exclude=COUNTS.get(name)) for name in names}


def read_measured() -> tuple[Measured, ...]:
    """Return the speeds of this machine, newest first."""
    here = this_machine()
    return tuple(
        sorted((one for one in read_all_measured() if one.machine == here), key=lambda one: one.date, reverse=True)
    )


def read_all_measured() -> tuple[Measured, ...]:
    """Return the speeds of all machines."""
    path = measured_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ()
    try:
        tree = json.loads(text)
        if tree["format"] != FORMAT:  # written by another version of millpond
            return ()
        names = [field.name for field in fields(Measured)]
        return tuple(Measured(**{name: entry[name] for name in names}) for entry in tree["measured"])
    except (ValueError, KeyError, TypeError) as error:
        raise MillpondError(
            f"{path} is damaged ({error}); delete it and measure again with `millpond bench`"
        ) from error


def with_measured(new: Measured, stored: tuple[Measured, ...]) -> dict[str, Any]:
    """Return the contents of the file with a new measurement in place of those of the same machine and settings."""
    others = [one for one in stored if (one.machine, one.settings) != (new.machine, new.settings)]
    return {"format": FORMAT, "measured": [asdict(one) for one in (new, *others)]}


@dataclass(frozen=True)
class TimeEstimate:
    """Estimated seconds, and the measurement they come from. Evaluations and checkpoints are not included."""

    whole: str  # unit of the run: iteration, round or cycle
    count: int  # units in the run
    parts: dict[str, float]  # seconds per unit
    seconds: float  # of the run
    measured: Measured
    other_sizes: str = ""  # in words, if other sizes were measured

    @property
    def whole_seconds(self) -> float:
        return sum(self.parts.values())


def estimate_time(recipe: Recipe, plan: Plan, measured: Iterable[Measured]) -> TimeEstimate | None:
    """Estimate from the newest measurement with the same settings; None if there is none."""
    settings = settings_of(recipe)
    newest = next((one for one in measured if one.settings == settings), None)
    if newest is None:
        return None
    return KINDS[recipe.kind].planner.load().estimate(plan, newest)


def show_estimate(estimate: TimeEstimate) -> list[str]:
    """Return the section of the plan."""
    parts = ", ".join(
        f"{NAMES.get(name, name)} {duration(seconds)}"
        for name, seconds in estimate.parts.items()
        if name != "other" and seconds >= estimate.whole_seconds / 1000
    )
    of_run = f"{plural(estimate.count, estimate.whole)}, without evaluations and checkpoints"
    rows = [
        (f"one {estimate.whole}", duration(estimate.whole_seconds), parts),
        ("the run", duration(estimate.seconds), of_run),
    ]
    source = f"From the bench of {estimate.measured.date[:10]} on this machine"
    if estimate.other_sizes:
        source += f", {estimate.other_sizes}"
    return ["", "Time, estimated", *figures(rows), *sentence(f"{source}.")]


def duration(seconds: float) -> str:
    """Format a time with about three digits: 85 ms, 12.3 s, 4.2 min, 7.5 h, 2.7 days."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
