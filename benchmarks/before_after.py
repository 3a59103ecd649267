"""Compare the speed of two checkouts of the project, stage by stage.

    git worktree add /tmp/before main~20
    python benchmarks/before_after.py /tmp/before . --alternations 5 --json before_after.json
    python benchmarks/before_after.py OLD NEW --recipes grid benchmarks/peers/forage.yaml

Each alternation runs `millpond bench RECIPE --json` with both checkouts, one after the other, in changing order, so that
other load on the machine hits both. A stage's figure is the median over the alternations; its ratio is the median of
after / before within an alternation, with the lowest and the highest. A stage counts as slower if that median is more than
1.10 and all alternations but at most one agree. The lake's append and sample are stages of `grid`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hardware import processor

RECIPES = ("grid", "mixture", "reward")
SLOWER = 1.10


@dataclass(frozen=True)
class Change:
    """One stage in both checkouts: seconds by alternation."""

    name: str
    before: list[float]
    after: list[float]

    @property
    def ratios(self) -> list[float]:
        return [new / old for old, new in zip(self.before, self.after, strict=True)]

    @property
    def slower(self) -> bool:
        """True if slower by more than a tenth in all alternations but at most one."""
        agree = sum(ratio > 1 for ratio in self.ratios)
        return median(self.ratios) > SLOWER and agree >= len(self.ratios) - (len(self.ratios) > 2)


def run(folder: Path, *arguments: str) -> Any:
    """Return the JSON that a command of the checkout prints, or None if the checkout refuses the command."""
    command = [sys.executable, "-m", "millpond", *arguments]
    with tempfile.TemporaryDirectory() as cache:  # a bench stores its figures for plans: not among the user's
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "XDG_CACHE_HOME": cache}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cache)
    if done.returncode == 2:
        return None
    if done.returncode:
        raise SystemExit(f"{folder}: {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def stages(folder: Path, recipe: str, options: list[str]) -> dict[str, float] | None:
    """Return seconds by stage, and of a whole iteration, round or cycle."""
    path = Path(recipe)
    bench = run(folder, "bench", str(path.resolve()) if path.exists() else recipe, "--json", *options)
    if bench is None:
        return None
    seconds = {f"{path.stem}: {stage['name']}": stage["alone"] for stage in bench["stages"]}
    return {**seconds, f"{path.stem}: as a whole": bench["iteration"]["seconds"]["median"]}


def measure(folder: Path, recipes: list[str], options: list[str]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for recipe in recipes:
        print(f"  {folder}: {recipe}", file=sys.stderr, flush=True)
        seconds |= stages(folder, recipe, options) or {}
    return seconds


def changes(before: list[dict[str, float]], after: list[dict[str, float]]) -> Iterator[Change]:
    """Yield the stages that both checkouts have."""
    for name in after[0]:
        if all(name in one for one in (*before, *after)):
            yield Change(name, [one[name] for one in before], [one[name] for one in after])


def show(compared: list[Change], missing: list[str]) -> list[str]:
    """The table."""
    lines = [f"{'stage':<28}{'before':>12}{'after':>12}{'after / before':>16}  spread"]
    for one in compared:
        ratios = one.ratios
        mark = "  SLOWER" if one.slower else ""
        lines.append(
            f"{one.name:<28}{seconds_shown(median(one.before)):>12}{seconds_shown(median(one.after)):>12}"
            f"{median(ratios):>16.2f}  {min(ratios):.2f} to {max(ratios):.2f}{mark}"
        )
    if missing:
        lines.append(f"only in one of the two: {', '.join(missing)}")
    slower = [one.name for one in compared if one.slower]
    lines.append(f"slower by more than 10 %: {', '.join(slower) or 'none'}")
    return lines


def seconds_shown(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:,.2f} {unit}"
    return f"{seconds * 1e6:,.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout of the project")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--quick", action="store_true", help="tiny benches, to see that it works; figures say nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    folders = [folder.resolve() for folder in (arguments.old, arguments.new)]
    for folder in folders:
        if not (folder / "src" / "millpond").is_dir():
            parser.error(f"{folder} has no src/millpond; give the folder of a checkout")
    measured: list[list[dict[str, float]]] = [[], []]
    for number in range(arguments.alternations):
        print(f"alternation {number + 1} of {arguments.alternations}", file=sys.stderr, flush=True)
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured[side].append(measure(folders[side], arguments.recipes, ["--quick"] if arguments.quick else []))
    compared = list(changes(*measured))
    names = {name for side in measured for one in side for name in one}
    missing = sorted(names - {one.name for one in compared})
    print(f"{processor()}; before {folders[0]}, after {folders[1]}; median of {arguments.alternations} alternations")
    print("\n".join(show(compared, missing)))
    if arguments.json:
        result = {"hardware": processor(), "changes": [{**asdict(one), "slower": one.slower} for one in compared]}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    raise SystemExit(any(one.slower for one in compared))


if __name__ == "__main__":
    main()
