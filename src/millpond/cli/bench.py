"""What `bench` does."""

from __future__ import annotations

from pathlib import Path

from millpond.cli.output import print_json, print_text, watched
from millpond.errors import MillpondError

PICTURES = (".png", ".svg", ".pdf")


def bench(
    recipe: str,
    overrides: list[str],
    *,
    quick: bool,
    only_iteration: bool,
    iterations: int | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure, keep the figures for plans, draw, print."""
    from millpond.bench.run import keep, run_bench
    from millpond.bench.show import draw_bench, show_bench

    if picture is not None and picture.suffix not in PICTURES:
        raise MillpondError(f"--picture {picture} must end in one of {', '.join(PICTURES)}")
    with watched("measuring") as watch:
        found = run_bench(
            recipe, overrides, quick=quick, only_iteration=only_iteration, iterations=iterations, watch=watch
        )
    kept = None if quick else keep(found, overrides)
    if picture is None and kept is not None:
        picture = kept.with_name(f"bench-{Path(recipe).stem}.png")
    if picture is not None:
        draw_bench(found, picture)
    if as_json:
        print_json({**found.to_json(), "kept": kept, "picture": picture})
        return
    lines = show_bench(found)
    lines += ["", *([f"picture: {picture}"] if picture is not None else [])]
    lines.append(f"kept for plans: {kept}" if kept is not None else "not kept: a quick bench is no measurement")
    print_text("\n".join(lines))
