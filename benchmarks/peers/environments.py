"""Virtual environments of the peers, one each, separate from millpond's: they pin other versions of the same packages."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

REQUIREMENTS = {
    "puffer": ("pufferlib-core==3.0.23", "mettagrid==0.26.22", "heavyball==2.2.3"),
    "sb3": (
        "torch==2.13.0",
        "stable-baselines3==2.9.2",
        "sb3-contrib==2.9.2",
        "gymnasium[box2d,mujoco]==1.4.0",
        "mujoco==4.0.0",
        "ale-py==0.12.1",
        "opencv-python-headless==5.0.0.93",
        "minatar==1.0.15",
    ),
    "torchrl": ("torch==2.13.0", "torchrl==0.14.1", "tensordict==0.14.3", "numpy"),
}
# Variables that millpond sets for its own processes; peers run without them.
ONLY_OURS = ("GOMP_SPINCOUNT",)

SCENARIO = """
from millpond.envs.mettagrid import forage_config
from millpond.envs.mettagrid import Forage
print(forage_config(Forage()).model_dump_json())
"""


class OtherWork:
    """Number of cores that other processes kept busy since this was made; None where the system does not say.

    Two threads that wait for each other at every operation take many times as long if another process has one of the cores,
    even a process of the lowest priority. So figures are printed with the load beside them. Processes that a trainer started
    and did not wait for count as others.
    """

    def __init__(self) -> None:
        self.before = self._now()

    def cores(self) -> float | None:
        if self.before is None or (now := self._now()) is None:
            return None
        moment, busy, own = (after - before for after, before in zip(now, self.before, strict=True))
        return max(0.0, (busy - own) / moment)

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Return the time, and the CPU seconds of the system and of this process and its children that have ended."""
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:8]]
        except (OSError, ValueError):
            return None
        idle = ticks[3] + ticks[4]  # the fifth is waiting for the disk
        busy = (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), busy, sum(usage.ru_utime + usage.ru_stime for usage in usages)


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
    return last_line(*peer_command(python, script, *arguments, threads=threads))


def peer_command(
    python: str, script: Path, *arguments: object, threads: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command of a peer's script and its environment variables."""
    environment = {name: value for name, value in os.environ.items() if name not in (*ONLY_OURS, "PYTHONPATH")}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return [python, str(script), *map(str, arguments)], environment


def last_line(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Return the last line that a command prints; if it fails, exit with the end of its errors."""
    return last_line_and_cpu(command, environment)[0]


def last_line_and_cpu(
    command: list[str], environment: dict[str, str] | None = None, *, cpu_limit: float | None = None
) -> tuple[str, float]:
    """Return the last line that a command prints, and the CPU seconds of it and its child processes.

    After `cpu_limit` CPU seconds the command gets SIGINT, on which it has to end.
    """
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=printed, stderr=errors, text=True, env=environment)
        if cpu_limit is not None:
            wait_for_cpu_seconds(process.pid, cpu_limit)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)[:400]} failed:\n{errors.read()[-4000:]}")
        return (printed.read().strip().splitlines() or [""])[-1], usage.ru_utime + usage.ru_stime


def wait_for_cpu_seconds(pid: int, limit: float) -> None:
    """Wait until a child process of this one has spent so many CPU seconds, and send it SIGINT; return earlier if it ends."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= limit:
            os.kill(pid, signal.SIGINT)
            return
        time.sleep(0.5)


def write_scenario(path: Path) -> None:
    """Write the forage scenario as a MettaGridConfig, so that all sides use the same one."""
    path.write_text(last_line([sys.executable, "-c", SCENARIO]))
