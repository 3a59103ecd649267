"""What `reward score` does."""

from __future__ import annotations

from pathlib import Path

from millpond.cli.output import print_json, print_text
from millpond.planner.lines import figures
from millpond.plurals import plural


def score(
    run: str, path: str, out: Path | None, plot: Path | None, episodes: str | None, best: bool, as_json: bool
) -> None:
    """Write the learned reward of every step, and a picture of chosen episodes."""
    from millpond.trainers.reward.score import draw_scores, parse_episodes, score_run, write_scores

    scores = score_run(run, path, best=best)
    chosen = parse_episodes(episodes, len(scores.rewards))
    target = out if out is not None else Path(f"{Path(path).stem}-reward.npz")
    write_scores(scores, target)
    if plot is not None:
        draw_scores(scores, chosen, plot)
    if as_json:
        print_json(
            {
                "run": run,
                "checkpoint_updates": scores.updates,
                "objective": scores.objective,
                "file": str(target),
                "plot": None if plot is None else str(plot),
                "episodes": [
                    {"name": name, "steps": len(reward), "predicted_return": float(reward.sum(dtype="float64"))}
                    for name, reward in zip(scores.names, scores.rewards, strict=True)
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
