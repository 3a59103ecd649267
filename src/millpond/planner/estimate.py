"""Times of a run, estimated from the speeds that `millpond bench` measured on this machine."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from millpond.config import Recipe
from millpond.errors import MillpondError
from millpond.kinds import KINDS
from millpond.planner.host import Host
from millpond.planner.kind import Plan
from millpond.planner.lines import figures, sentence
from millpond.plurals import plural
from millpond.processor import cache_folder

FORMAT = 2
COUNTS = {  # of a recipe: they say how much is done, not how long each piece of it takes
    "mixture": {"total_frames", "collections_per_round", "big_updates", "recovery_checks", "epsilon_reset_to",
                "big_epsilon_reset_to", "epsilon_ladder"},
    "reward": {"epochs", "cycles", "iterations", "train_batches", "save_freq", "log_batches", "learning_rate"},
    "agent": {"steps_per_iteration", "warmup_steps", "test_episodes", "learning_rate", "gamma", "target_tau"},
    "vector": {"timeout", "on_crash"},
}  # fmt: skip
NAMES = {"train_big": "BigAgent"}  # parts that are called otherwise in words


@dataclass(frozen=True)
class Measured:
    """One recipe's speed: seconds of what was measured, by part, and the sizes that they grow with.

    ppo      an iteration   collect (advantages in it), train, other
    mixture  a round        collect, pour, learn, fill, train_big, other (the reset in it)
    reward   a cycle        act, train, other
    """

    machine: str
    date: str
    recipe: str
    settings: str  # what must be the same for the figures to hold
    sizes: dict[str, float]
    seconds: dict[str, float]


def kept_path() -> Path:
    """The user's cache folder: figures belong to a machine, not to a folder of runs."""
    return cache_folder() / "bench.json"


def this_machine() -> str:
    """A home folder may be shared by several machines, so figures say whose they are."""
    return f"{socket.gethostname()}, {platform.machine()}, {Host.here().cores} cores"


def settings_of(recipe: Recipe) -> str:
    """The settings that decide how long a step takes; counts of steps, envs and updates are not among them."""
    decisive = KINDS[recipe.kind].planner.load().speed_settings(recipe)
    return json.dumps({"kind": recipe.kind, "device": recipe.device, **decisive}, sort_keys=True)


def speed_sections(recipe: Recipe, *names: str) -> dict[str, Any]:
    """Sections of a recipe without the counts in them."""
    return {name: getattr(recipe, name).model_dump(mode="json", exclude=COUNTS.get(name)) for name in names}


def read_measured() -> tuple[Measured, ...]:
    """The figures of this machine, newest first; none where nothing was measured on it."""
    here = this_machine()
    return tuple(sorted((one for one in read_kept() if one.machine == here), key=lambda one: one.date, reverse=True))


def read_kept() -> tuple[Measured, ...]:
    """All figures that are kept, of whichever machine."""
    path = kept_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ()
    try:
        tree = json.loads(text)
        if tree["format"] != FORMAT:  # of another version of millpond
            return ()
        names = [field.name for field in fields(Measured)]
        return tuple(Measured(**{name: entry[name] for name in names}) for entry in tree["measured"])
    except (ValueError, KeyError, TypeError) as error:
        raise MillpondError(
            f"{path} is damaged ({error}); remove it, and measure again with `millpond bench`"
        ) from error


def with_measured(new: Measured, kept: tuple[Measured, ...]) -> dict[str, Any]:
    """What is to be kept when a new figure takes the place of those of the same machine and settings."""
    others = [one for one in kept if (one.machine, one.settings) != (new.machine, new.settings)]
    return {"format": FORMAT, "measured": [asdict(one) for one in (new, *others)]}


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds, and the figures that they are from. Evaluations and checkpoints come on top."""

    whole: str  # what the run is made of: iteration, round or cycle
    count: int  # of them in the run
    parts: dict[str, float]  # seconds of one whole
    seconds: float  # of the run
    measured: Measured
    other_sizes: str = ""  # in words, where what was measured had others

    @property
    def whole_seconds(self) -> float:
        return sum(self.parts.values())


def estimate_time(recipe: Recipe, plan: Plan, measured: Iterable[Measured]) -> TimeEstimate | None:
    """From the newest figures of the same environment, network, precision and workers; None where there are none."""
    wanted = settings_of(recipe)
    found = next((one for one in measured if one.settings == wanted), None)
    if found is None:
        return None
    return KINDS[recipe.kind].planner.load().estimate(plan, found)


def show_estimate(estimate: TimeEstimate) -> list[str]:
    """The section of the plan."""
    parts = ", ".join(
        f"{NAMES.get(name, name)} {duration(seconds)}"
        for name, seconds in estimate.parts.items()
        if name != "other" and seconds >= estimate.whole_seconds / 1000
    )
    article = "an" if estimate.whole[0] in "aeiou" else "a"
    of_run = f"{plural(estimate.count, estimate.whole)}, without evaluations and checkpoints"
    rows = [
        (f"{article} {estimate.whole}", duration(estimate.whole_seconds), parts),
        ("the run", duration(estimate.seconds), of_run),
    ]
    source = f"From the bench of {estimate.measured.date[:10]} on this machine"
    if estimate.other_sizes:
        source += f", {estimate.other_sizes}"
    return ["", "Time, estimated", *figures(rows), *sentence(f"{source}.")]


def duration(seconds: float) -> str:
    """A time with three digits or so: 85 ms, 12.3 s, 4.2 min, 7.5 h, 2.7 days."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
