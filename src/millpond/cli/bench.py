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
    context: typer.Context,
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
    gpu_report: Annotated[
        bool,
        typer.Option(
            "--gpu-report",
            help="Measure a GPU and recipes on it (all arguments are recipes; default: "
            "grid, metta, mettagrid, mixture, reward-online), and write one JSON file. About ten minutes.",
        ),
    ] = False,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="With --gpu-report: cuda, cuda:N, mps, cpu or emulated.")
    ] = "cuda",
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="With --gpu-report: the JSON file.")] = Path(
        "gpu-report.json"
    ),
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
      millpond bench --gpu-report        # what a GPU does, in one file to send in
    """
    if gpu_report:
        source = context.get_parameter_source("recipe")
        named = source is not None and source.name != "DEFAULT"
        _report_gpu([recipe, *(overrides or [])] if named else [], device, out, quick=quick, trust=trust, json=json)
        return
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


def _report_gpu(recipes: list[str], device: str, out: Path, *, quick: bool, trust: bool, json: bool) -> None:
    from millpond.bench.gpu.hardware import ReportEffort
    from millpond.bench.gpu.report import RECIPES, gpu_report, show_report, write_report
    from millpond.config.load import code_of
    from millpond.trust import require_trust

    overrides = [name for name in recipes if "=" in name]
    if overrides:
        raise MillpondError(
            f"--gpu-report takes recipes and no overrides such as {overrides[0]}: reports must be comparable; put the "
            "settings into a recipe file and name that"
        )
    for recipe in recipes:
        require_trust(code_of(recipe, [], None), trust_or_ask(trust))
    with progress("measuring") as update:
        report = gpu_report(
            recipes or RECIPES, device=device, effort=ReportEffort.small() if quick else None, progress=update
        )
    write_report(report, out)
    if json:
        print_json(report)
        return
    note = "quick: these numbers mean nothing" if quick else "send it in: docs/gpu.md says where"
    print_text("\n".join([*show_report(report), "", f"written: {out} ({note})"]))
