"""What `experiment` does."""

from __future__ import annotations

from pathlib import Path

from millpond.cli.output import print_json, print_text
from millpond.errors import MillpondError


def mixture_vs_single(
    *,
    frames: int,
    seeds: int,
    games: str,
    methods: str,
    recipe: str,
    overrides: list[str],
    rounds: int,
    episodes: int,
    folder: Path,
    at_once: int | None,
    report_only: bool,
    as_json: bool,
) -> None:
    """Run it, or only read what is there, and print the answer."""
    from millpond.cores import usable_cores
    from millpond.experiments.analysis import show
    from millpond.experiments.mixture_vs_single import ExperimentSettings
    from millpond.experiments.run import report, run_experiment

    settings = ExperimentSettings(
        frames=frames,
        seeds=seeds,
        games=tuple(name.strip() for name in games.split(",") if name.strip()),
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        recipe=recipe,
        rounds=rounds,
        episodes=episodes,
        overrides=tuple(overrides),
    )
    if report_only:
        if not (folder / "experiment.json").exists():
            raise MillpondError(f"{folder} holds no experiment; leave --report out to run one")
        answer = report(folder, settings)
    else:
        answer = run_experiment(
            folder, settings, at_once=at_once or usable_cores(), say=lambda line: print(line, flush=True)
        )
    if as_json:
        print_json(answer.to_json())
    else:
        print_text(
            "\n".join([*show(answer), "", f"written to {folder}: results.json, table.txt, curves.png, .svg, .json"])
        )
