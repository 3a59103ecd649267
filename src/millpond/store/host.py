"""Facts about the machine that a run is on: versions, cores, devices, commit, command line."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from millpond.cpu import memory_bytes, usable_cores
from millpond.processor import cpu_name

PACKAGES = ("torch", "numpy", "numba", "pydantic", "gymnasium", "h5py", "lz4", "safetensors", "tensorboard")
EXTRAS = ("ale-py", "mettagrid", "minatar", "pettingzoo", "wandb")


def host_facts() -> dict[str, Any]:
    """Return versions, cores, devices, the commit if the source is a git checkout, and the command line."""
    return {
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "cores_allowed": usable_cores(),
        "memory_bytes": memory_bytes(),
        "python": platform.python_version(),
        "versions": _versions(),
        "git": git_commit(Path(__file__).parent),
        **_torch_facts(),
    }


def git_commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder, and True if files differ from it; None outside of a checkout, or without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # A folder that git ignores, such as a virtual environment inside another project, is not part of that project.
        tracked = git("ls-files", "--", str(folder))
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))} if tracked else None
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    versions = {}
    for name in ("millpond", *PACKAGES, *EXTRAS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _torch_facts() -> dict[str, Any]:
    import torch

    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"devices": ["cpu", *cuda], "torch_threads": torch.get_num_threads()}
