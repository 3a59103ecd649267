"""The command `doctor`: versions, hardware and extras of this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement

from millpond import __version__
from millpond.cli.complete import complete_recipe
from millpond.cli.options import JsonOption, OverridesArgument, TrustOption, trust_or_ask
from millpond.cli.output import print_json, print_text
from millpond.envs.families import install_command
from millpond.errors import MillpondError
from millpond.formatting import figures, sentence, size
from millpond.planner.estimate import Host
from millpond.processor import check_bfloat16, cpu_name

LIBRARIES = ("torch", "numpy", "numba", "pydantic", "gymnasium", "h5py", "safetensors", "lz4", "tensorboard", "rich")
EXTRAS = {  # extra: its distribution, and its purpose
    "atari": ("ale-py", "the Atari emulator, Gravitar among its games (GPL-2.0)"),
    "board": ("starlette", "the board in the browser"),
    "box2d": ("Box2D", "Box2D, for Gymnasium's LunarLander, BipedalWalker and CarRacing"),
    "metta": ("mettagrid", "the real MettaGrid"),
    "minatar": ("MinAtar", "MinAtar's five games"),
    "mujoco": ("mujoco", "MuJoCo, for Gymnasium's robots such as HalfCheetah"),
    "pettingzoo": ("pettingzoo", "multi-agent environments"),
    "trackio": ("trackio", "logging to trackio, on this machine"),
    "wandb": ("wandb", "logging to Weights & Biases"),
    "dev": ("pytest", "tests and checks"),
}


@dataclass(frozen=True)
class Devices:
    """Devices and threads of torch."""

    names: tuple[str, ...]
    threads: int
    error: str = ""


def doctor(
    overrides: OverridesArgument = None,
    emulate_gpu: Annotated[
        str | None,
        typer.Option(
            "--emulate-gpu",
            metavar="RECIPE",
            autocompletion=complete_recipe,
            help="Train the preset debug of a recipe on an emulated GPU, and count launches, copies and waits.",
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="With --emulate-gpu: estimate on paper how fast real GPUs would be.")
    ] = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Show what this machine has: versions, cores, devices, memory, disk, extras, and how to install the rest.

    Exits with 1 if something that millpond needs is missing or broken. With --emulate-gpu, show what a recipe would ask
    of a GPU, which need not exist.

    \b
      millpond doctor
      millpond doctor --json
      millpond doctor --emulate-gpu grid policy.core=gru
      millpond doctor --emulate-gpu metta --estimate
    """
    if emulate_gpu is not None and estimate:
        _estimate(emulate_gpu, overrides or [], trust, json)
        return
    if estimate:
        raise MillpondError("--estimate needs a recipe: millpond doctor --emulate-gpu RECIPE --estimate")
    if emulate_gpu is not None:
        _emulate(emulate_gpu, overrides or [], trust, json)
        return
    if overrides:
        raise MillpondError(f"overrides such as {overrides[0]} belong to a recipe: doctor --emulate-gpu RECIPE")
    facts = examine()
    missing = [name for name, version in facts["libraries"].items() if version is None]
    if json:
        print_json(facts)
    else:
        print_text("\n".join(_text(facts, missing)))
    if missing or facts["unsupported"] or facts["error"]:
        sys.exit(1)


def _emulate(recipe: str, overrides: list[str], trust: bool, json: bool) -> None:
    from millpond.bench.emulated import count_run, show_run

    run = count_run(recipe, overrides, trust=trust_or_ask(trust))
    if json:
        print_json(run.to_json())
    else:
        print_text("\n".join(show_run(run)))


def _estimate(recipe: str, overrides: list[str], trust: bool, json: bool) -> None:
    from millpond.bench.gpu.estimate import estimate_recipe, show_estimate
    from millpond.config.load import code_of
    from millpond.trust import require_trust

    require_trust(code_of(recipe, overrides, None), trust_or_ask(trust))
    found = estimate_recipe(recipe, overrides)
    if json:
        print_json(found)
    else:
        print_text("\n".join(show_estimate(found)))


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unsupported() -> dict[str, str]:
    """Return installed distributions outside the version range that millpond supports, with that range."""
    try:
        requirements = map(Requirement, importlib.metadata.requires("millpond") or ())
    except importlib.metadata.PackageNotFoundError:  # run from source, without an installation
        return {}
    extras = {"", *EXTRAS} - {"dev"}  # any environment has some of its packages, such as setuptools, for other reasons
    used = [
        requirement
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    ]
    versions = {requirement.name: _installed(requirement.name) for requirement in used}
    return {
        requirement.name: str(requirement.specifier)
        for requirement in used
        if (version := versions[requirement.name]) and not requirement.specifier.contains(version, prereleases=True)
    }


def _devices() -> Devices:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Devices((), 0, f"torch cannot be imported: {error}")
    names = [f"cpu ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory
        names.append(f"cuda:{index} ({torch.cuda.get_device_name(index)}, {size(memory)})")
    if torch.backends.mps.is_available():
        names.append("mps")
    return Devices(tuple(names), torch.get_num_threads())


def _compiled_paths() -> dict[str, str]:
    """Return the compiled code in use on this processor, by purpose; plain PyTorch or Python does the rest."""
    try:
        from millpond import fast
        from millpond.replay.lake.checksum import HAS_CRC32C

        network = fast.description()
    except (ImportError, OSError):
        return {}
    return {
        "LSTM": network,
        "encoders, losses, advantages": "numba",
        "checksums": "the processor's CRC32C instruction" if HAS_CRC32C else "a table",
    }


def examine() -> dict[str, Any]:
    """Return everything that `millpond doctor` prints, as plain values."""
    host, devices = Host.here(), _devices()
    bfloat16 = None if devices.error else check_bfloat16()
    return {
        "millpond": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: _installed(name) for name in LIBRARIES},
        "extras": {name: _installed(distribution) for name, (distribution, _) in EXTRAS.items()},
        "unsupported": _unsupported(),
        "cores": host.cores,
        "cores_in_all": os.cpu_count(),
        "memory_bytes": host.memory,
        "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
        "devices": list(devices.names),
        "torch_threads": devices.threads,
        "processor": cpu_name(),
        "bfloat16": None if bfloat16 is None else {**asdict(bfloat16), "summary": str(bfloat16)},
        "compiled_paths": {} if devices.error else _compiled_paths(),
        "error": devices.error,
    }


def _processor_lines(facts: dict[str, Any]) -> list[str]:
    if facts["bfloat16"] is None:
        return []
    rows = [
        ("model", facts["processor"]),
        ("oneDNN", facts["bfloat16"]["isa"] or "not in this build of torch"),
        ("bfloat16", facts["bfloat16"]["summary"]),
        *((f"compiled: {name}", way) for name, way in facts["compiled_paths"].items()),
    ]
    advice = (
        "To see if a run is faster in bfloat16: `millpond bench RECIPE`, and again with trainer.precision=bfloat16."
    )
    width = max(len(name) for name, _ in rows)
    lines = ["", "Processor", *(f"  {name:<{width}}  {value}" for name, value in rows)]
    return [*lines, *sentence(advice)] if facts["bfloat16"]["works"] else lines


def _text(facts: dict[str, Any], missing: list[str]) -> list[str]:
    lines = [
        f"millpond {facts['millpond']}, Python {facts['python']}",
        *figures([(name, version or "missing") for name, version in facts["libraries"].items()]),
        "",
        "This machine",
        *figures(
            [
                ("cores for this process", str(facts["cores"]), f"{facts['cores_in_all']} in all"),
                ("memory", size(facts["memory_bytes"]), ""),
                ("free disk, in this folder", size(facts["free_disk_bytes"]), ""),
                ("torch threads", str(facts["torch_threads"]), ""),
            ]
        ),
        *(f"  device {name}" for name in facts["devices"]),
        *_processor_lines(facts),
        "",
        "Extras",
        *figures(
            [
                (
                    name,
                    version or "-",
                    EXTRAS[name][1] if version else f"{EXTRAS[name][1]}: {install_command(name)}",
                )
                for name, version in facts["extras"].items()
            ]
        ),
    ]
    problems = [f"{name} is missing; run `make test` again, or pip install millpond" for name in missing]
    problems += [
        f"{name} {_installed(name)} is not supported: millpond needs {name}{bounds}; pip install '{name}{bounds}'"
        for name, bounds in facts["unsupported"].items()
    ]
    problems += [facts["error"]] if facts["error"] else []
    lines += ["", "Problems" if problems else "Everything that millpond needs is installed."]
    for problem in problems:
        lines += sentence(problem, 2, "- ")
    return lines
