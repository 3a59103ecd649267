"""What this machine has, and what to install for what it has not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond import __version__
from millpond.cli.output import print_json, print_text
from millpond.envs.families import install_command
from millpond.planner.host import Host
from millpond.planner.lines import figures, sentence, size

LIBRARIES = ("torch", "numpy", "numba", "pydantic", "gymnasium", "h5py", "safetensors", "lz4", "tensorboard", "rich")
EXTRAS = {  # extra: the distribution that it brings, and what it is for
    "atari": ("ale-py", "the Atari emulator, Gravitar among its games (GPL-2.0)"),
    "metta": ("mettagrid", "the real MettaGrid"),
    "minatar": ("MinAtar", "MinAtar's five games"),
    "pettingzoo": ("pettingzoo", "parallel worlds of several agents"),
    "wandb": ("wandb", "records at Weights & Biases"),
    "dev": ("pytest", "tests and checks"),
}


@dataclass(frozen=True)
class Devices:
    """What torch can compute on."""

    names: tuple[str, ...]
    threads: int
    error: str = ""


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> Devices:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Devices((), 0, f"torch cannot be imported: {error}")
    bfloat16 = "with" if Host.here().bfloat16 else "without"
    names = [f"cpu ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {bfloat16} bfloat16)"]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory
        names.append(f"cuda:{index} ({torch.cuda.get_device_name(index)}, {size(memory)})")
    if torch.backends.mps.is_available():
        names.append("mps")
    return Devices(tuple(names), torch.get_num_threads())


def examine() -> dict[str, Any]:
    """Everything that `millpond doctor` tells, as plain values."""
    host, devices = Host.here(), _devices()
    return {
        "millpond": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: _installed(name) for name in LIBRARIES},
        "extras": {name: _installed(distribution) for name, (distribution, _) in EXTRAS.items()},
        "cores": host.cores,
        "cores_in_all": os.cpu_count(),
        "memory_bytes": host.memory,
        "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
        "devices": list(devices.names),
        "torch_threads": devices.threads,
        "error": devices.error,
    }


def print_doctor(as_json: bool) -> None:
    """The examination; exit 1 where something that millpond needs is missing or broken."""
    found = examine()
    missing = [name for name, version in found["libraries"].items() if version is None]
    if as_json:
        print_json(found)
    else:
        print_text("\n".join(_text(found, missing)))
    if missing or found["error"]:
        sys.exit(1)


def _text(found: dict[str, Any], missing: list[str]) -> list[str]:
    lines = [
        f"millpond {found['millpond']}, Python {found['python']}",
        *figures([(name, version or "missing") for name, version in found["libraries"].items()]),
        "",
        "This machine",
        *figures(
            [
                ("cores for this process", str(found["cores"]), f"{found['cores_in_all']} in all"),
                ("memory", size(found["memory_bytes"]), ""),
                ("free disk, in this folder", size(found["free_disk_bytes"]), ""),
                ("torch threads", str(found["torch_threads"]), ""),
            ]
        ),
        *(f"  device {name}" for name in found["devices"]),
        "",
        "Extras",
        *figures(
            [
                (
                    name,
                    version or "-",
                    EXTRAS[name][1] if version else f"{EXTRAS[name][1]}: {install_command(name)}",
                )
                for name, version in found["extras"].items()
            ]
        ),
    ]
    problems = [f"{name} is missing; run `make test` again, or pip install millpond" for name in missing]
    problems += [found["error"]] if found["error"] else []
    lines += ["", "Wrong" if problems else "All that millpond needs is here."]
    for problem in problems:
        lines += sentence(problem, 2, "- ")
    return lines
