"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import BestOption, JsonOption, RunArgument, TrustOption, trust_or_ask
from millpond.cli.output import print_json, print_text
from millpond.formatting import figures, printable


def export(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as policy.onnx or policy.pt2.")],
    format: Annotated[
        str | None, typer.Option("--format", metavar="onnx|torch", help="Default: by the ending, .onnx or .pt2.")
    ] = None,
    best: BestOption = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Write one step of a run's policy to a file that runs without Millpond, and print its inputs and outputs.

    onnx, FILE.onnx: for onnxruntime and other runtimes; compared with the policy before it is written. Needs the extra
    `export`. torch, FILE.pt2: for torch.export.load. The state of a recurrent policy is an input and an output.

    \b
      millpond export grid-1 policy.onnx
      millpond export grid-1 policy.pt2 --best
    """
    from millpond.trainers.common.export import read_description
    from millpond.trainers.common.policy import load_policy

    policy = load_policy(run, best=best, trust=trust_or_ask(trust))
    path = policy.export(file, format)
    described = read_description(path)
    if json:
        print_json({"run": run, "file": str(path), "bytes": path.stat().st_size, **described})
        return
    rows = [
        (f"{kind} {one['name']}", f"{one['dtype']} [{', '.join(map(str, one['shape']))}]", one["meaning"])
        for kind, names in (("input", "inputs"), ("output", "outputs"))
        for one in described[names]
    ]
    size = ("bytes", f"{path.stat().st_size:,}", policy.description)
    print_text("\n".join([printable(str(path)), *figures([size, *rows])]))
