"""The command `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import (
    DEFAULT_RECIPE,
    JsonOption,
    OverridesArgument,
    RecipeArgument,
    TrustOption,
    recipe_and_overrides,
    trust_or_ask,
)
from millpond.cli.output import print_json, print_text, progress
from millpond.errors import MillpondError

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def bench(
    recipe: RecipeArgument = DEFAULT_RECIPE,
    overrides: OverridesArgument = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, in seconds, to try the command; nothing is saved.")
    ] = False,
    iteration: Annotated[
        bool,
        typer.Option(
            "--iteration", help="Only whole iterations (rounds, cycles), with the bare arithmetic of their networks."
        ),
    ] = False,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Iterations to time; default: depends on their size.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="File for the waterfall chart: .png or .svg; default: the cache folder."
        ),
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Measure this machine and a recipe on it: limits, every stage alone, whole iterations. About two minutes.

    Stages are shown as shares of their hardware limit and of an iteration (for a mixture a round, for reward learning a
    cycle), and an iteration next to the arithmetic of its networks alone. The measurements are saved, and
    `millpond plan` then estimates how long a run takes.

    \b
      millpond bench                     # the default recipe, grid
      millpond bench mixture             # a round: collect, pour, learn, fill, the BigAgent
      millpond bench reward              # a cycle: sample, update, target, record
      millpond bench metta --iteration   # the full-size iteration alone
    """
    from millpond.bench.run import run_bench, store_for_plans
    from millpond.bench.show import draw_bench, show_bench
    from millpond.config.load import code_of
    from millpond.trust import require_trust

    recipe, override_list = recipe_and_overrides(recipe, overrides)
    if picture is not None and picture.suffix not in PICTURE_SUFFIXES:
        raise MillpondError(f"--picture {picture} must end in one of {', '.join(PICTURE_SUFFIXES)}")
    code = code_of(recipe, override_list, "debug" if quick else None)
    require_trust(code, trust_or_ask(trust))  # before the progress bar, which would hide the question
    with progress("measuring") as update:
        result = run_bench(
            recipe,
            override_list,
            quick=quick,
            only_iteration=iteration,
            iterations=iterations,
            progress=update,
            trust=True,
        )
    saved = None if quick else store_for_plans(result, override_list)
    if picture is None and saved is not None:
        picture = saved.with_name(f"bench-{Path(recipe).stem}.png")
    if picture is not None:
        draw_bench(result, picture)
    if json:
        print_json({**result.to_json(), "kept": saved, "picture": picture})
        return
    lines = show_bench(result)
    lines += ["", *([f"picture: {picture}"] if picture is not None else [])]
    lines.append(f"saved for plans: {saved}" if saved is not None else "not saved: a quick bench is no measurement")
    print_text("\n".join(lines))
