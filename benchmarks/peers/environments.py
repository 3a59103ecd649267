"""Virtual environments of the peers, one each, separate from millpond's: they pin other versions of the same packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REQUIREMENTS = {
    "puffer": ("pufferlib-core==3.0.23", "mettagrid==0.26.22"),
    "sb3": (
        "torch==2.13.0",
        "stable-baselines3==2.9.2",
        "sb3-contrib==2.9.2",
        "gymnasium[mujoco]==1.4.0",
        "mujoco==4.0.0",
        "ale-py==0.12.1",
        "opencv-python-headless==5.0.0.93",
        "minatar==1.0.15",
    ),
    "torchrl": ("torch==2.13.0", "torchrl==0.14.1", "tensordict==0.14.3", "numpy"),
}
# Variables that millpond sets for its own processes; peers run without them.
ONLY_OURS = ("GOMP_SPINCOUNT",)


def folder_of(name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "millpond" / "peers" / name


def set_up(name: str) -> Path:
    """Create a peer's virtual environment if it is missing; return its interpreter."""
    folder = folder_of(name)
    requirements, stamp = "\n".join(REQUIREMENTS[name]), folder / "installed"
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == requirements:
        return python
    print(f"making {folder} with {', '.join(REQUIREMENTS[name])}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]], check=True)
    stamp.write_text(requirements)
    return python


def interpreter(name: str, overrides: Mapping[str, str]) -> str:
    """Return the interpreter named on the command line, else that of the environment created before."""
    if name in overrides:
        return overrides[name]
    stamp = folder_of(name) / "installed"
    if not stamp.is_file() or stamp.read_text() != "\n".join(REQUIREMENTS[name]):
        missing = "an old environment" if stamp.is_file() else "no environment yet"
        raise SystemExit(f"{name} has {missing}: python benchmarks/peers/run.py --setup {name}")
    return str(folder_of(name) / "bin" / "python")


def run_peer(python: str, script: Path, *arguments: object, threads: int | None = None) -> str:
    """Run a peer's script, with `threads` threads of torch or its default; return the last line printed."""
    environment = {name: value for name, value in os.environ.items() if name not in (*ONLY_OURS, "PYTHONPATH")}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [python, str(script), *map(str, arguments)]
    return last_line(command, environment)


def last_line(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Return the last line that a command prints; if it fails, exit with the end of its errors."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:400]} failed:\n{done.stderr[-4000:]}")
    return (done.stdout.strip().splitlines() or [""])[-1]
