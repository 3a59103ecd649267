"""The command `reward score`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import BestOption, EpisodesArgument, JsonOption
from millpond.cli.output import print_json, print_text
from millpond.formatting import figures, plural

reward = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Apply a learned reward.")


@reward.command()
def score(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a run of kind reward.")],
    path: EpisodesArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Output file: .npz or .hdf5; default: NAME-reward.npz.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Plot the reward and its sum over time: .png or .svg.")
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option("--episodes", metavar="0,2,5", help="Episodes to print and plot; default: the first four."),
    ] = None,
    best: BestOption = False,
    json: JsonOption = False,
) -> None:
    """Write the learned reward of every step of recorded episodes, for use elsewhere.

    \b
      millpond reward score reward-1 pendulum --plot rewards.png --episodes 0,1
    """
    from millpond.trainers.reward.evaluation import draw_scores, parse_episodes, score_run, write_scores

    scores = score_run(run, path, best=best)
    chosen = parse_episodes(episodes, len(scores.rewards))
    target = out if out is not None else Path(f"{Path(path).stem}-reward.npz")
    write_scores(scores, target)
    if plot is not None:
        draw_scores(scores, chosen, plot)
    if json:
        print_json(
            {
                "run": run,
                "checkpoint_updates": scores.updates,
                "objective": scores.objective,
                "file": str(target),
                "plot": None if plot is None else str(plot),
                "episodes": [
                    {"name": name, "steps": len(rewards), "predicted_return": float(rewards.sum(dtype="float64"))}
                    for name, rewards in zip(scores.names, scores.rewards, strict=True)
                ],
            }
        )
        return
    rows = [
        (
            scores.names[episode],
            f"{scores.rewards[episode].sum(dtype='float64'):.4f}",
            plural(len(scores.rewards[episode]), "step"),
        )
        for episode in chosen
    ]
    lines = [
        f"{plural(len(scores.rewards), 'episode')} scored by {run} ({scores.objective}, {plural(scores.updates, 'update')})",
        "Sum of the learned rewards",
        *figures(rows),
        f"rewards: {target}",
    ]
    print_text("\n".join(lines + ([f"picture: {plot}"] if plot is not None else [])))
