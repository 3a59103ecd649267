"""Features of the processor, and a check that bfloat16 works on it.

Some virtual machines advertise AMX but trap its instructions: the first bfloat16 product then kills the process with
SIGILL (oneDNN issues 1661 and 5689). No flag distinguishes such a machine, so bfloat16 is tried once in a child process,
and the result is cached per processor and torch version in the user's cache folder. If AMX traps, oneDNN is limited to the
instructions below it, which must happen before oneDNN is first used.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millpond.durable import replace_json
from millpond.errors import MillpondError

FORMAT = 1
ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
BELOW_AMX = "AVX512_CORE_BF16"
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is of ARM
PROBE_SECONDS = 120

# Products, a convolution and their gradients, as in training; then the time of a product in either precision.
PROBE = """
import json, time, torch
torch.manual_seed(0)
matrix = torch.randn(512, 512)
image, filters = torch.randn(4, 16, 16, 16), torch.nn.Conv2d(16, 32, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    (filters(image).float().square().mean() + torch.nn.Linear(512, 64)(matrix).float().square().mean()).backward()
def seconds(operand):
    operand @ operand
    times = []
    for _ in range(8):
        start = time.perf_counter()
        operand @ operand
        times.append(time.perf_counter() - start)
    return min(times)
print(json.dumps({"speedup": seconds(matrix) / seconds(matrix.bfloat16())}), flush=True)
"""


class ProcessorError(MillpondError):
    """This processor does not support what was requested."""


@dataclass(frozen=True)
class Bfloat16:
    """Result of trying bfloat16 in a child process."""

    works: bool
    max_isa: str | None = None  # oneDNN must be limited to this instruction set
    isa: str = ""  # instruction set that oneDNN used, as oneDNN names it
    speedup: float = 0.0  # of a matrix product over float32; 0 if it does not work
    problem: str = ""  # why it does not work without a limit

    def __str__(self) -> str:
        if not self.works:
            return f"does not work ({self.problem})"
        limited = f", with oneDNN limited to {self.max_isa} ({self.problem})" if self.max_isa else ""
        return f"works{limited}; products {self.speedup:.1f} times the speed of float32"


def cpu_flags() -> frozenset[str]:
    """Return the features that the processor advertises; empty if the system does not list them."""
    for line in _cpuinfo():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, ARM
            return frozenset(value.split())
    return frozenset()


def cpu_name() -> str:
    """Return the model name of the processor."""
    names = (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def claims_bfloat16(flags: Iterable[str]) -> bool:
    """Return True if the processor has bfloat16 instructions; otherwise it is emulated, much slower than float32."""
    return not BFLOAT16_FLAGS.isdisjoint(flags)


def claims_amx(flags: Iterable[str]) -> bool:
    """Return True if the processor advertises AMX, which some hypervisors trap."""
    return any(flag.startswith("amx") for flag in flags)


def cache_folder() -> Path:
    """Return Millpond's folder in the user's cache, for measurements that belong to a machine, not to a run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond"


def check_bfloat16(*, program: str = PROBE) -> Bfloat16:
    """Try bfloat16 in a child process, first without limits, then with oneDNN limited to instructions below AMX.

    A conclusive result is cached: each trial worked or was killed by SIGILL. Other failures, such as too little memory or
    a timeout, may pass, so bfloat16 is tried again next time. Delete `processor.json` in the cache folder to try again.
    """
    key = _key(program)
    cached = _read_cache()
    if key in cached:
        return Bfloat16(**cached[key])
    result, conclusive = _try(program, os.environ)
    if not result.works and ISA_VARIABLE not in os.environ:
        limited, limited_conclusive = _try(program, {**os.environ, ISA_VARIABLE: BELOW_AMX})
        conclusive = conclusive and limited_conclusive
        if limited.works:
            result = replace(limited, max_isa=BELOW_AMX, problem=result.problem)
    if conclusive:
        _write_cache({**cached, key: asdict(result)})
    return result


def prepare_bfloat16(flags: Iterable[str] | None = None, *, program: str = PROBE) -> None:
    """Make bfloat16 safe on the CPU in this process; call it before torch computes anything.

    Does nothing on processors without AMX. Raises `ProcessorError` if bfloat16 cannot be made to work.
    """
    if not claims_amx(cpu_flags() if flags is None else flags):
        return
    result = check_bfloat16(program=program)
    if not result.works:
        raise ProcessorError(
            f"trainer.precision=bfloat16 does not work on this processor ({cpu_name()}: {result.problem}); "
            "set trainer.precision=float32"
        )
    if result.max_isa is not None:
        limit_onednn(result.max_isa, result.isa)
        warnings.warn(
            f"bfloat16 with AMX {result.problem} on this processor; oneDNN is limited to {result.max_isa}, "
            "with which it works",
            stacklevel=2,
        )


def can_use_bfloat16() -> bool:
    """Prepare this process for bfloat16 on the CPU, and return True if it works."""
    try:
        prepare_bfloat16()
    except ProcessorError:
        return False
    return True


def limit_onednn(max_isa: str, expected: str) -> None:
    """Limit oneDNN's instruction set in this process and its children; raise if oneDNN was used before.

    `expected` is oneDNN's name of the instruction set in a process that was limited in time.
    """
    if os.environ.get(ISA_VARIABLE) == max_isa:
        return
    before = os.environ.get(ISA_VARIABLE)
    os.environ[ISA_VARIABLE] = max_isa
    if "torch" in sys.modules and (effective := onednn_isa()) != expected:
        os.environ.pop(ISA_VARIABLE)
        if before is not None:
            os.environ[ISA_VARIABLE] = before
        raise ProcessorError(
            f"oneDNN cannot be limited to {max_isa}, because torch has used it already in this process "
            f"(with {effective or 'an unknown instruction set'}); "
            f"start Python with {ISA_VARIABLE}={max_isa} in its environment"
        )


def onednn_isa() -> str:
    """Return oneDNN's name of the instruction set that it uses in this process; empty if unknown.

    The call fixes the instruction set for the rest of the process. oneDNN prints it once, when it is first verbose.
    """
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return ""
    sys.stdout.flush()
    stdout = os.dup(1)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        try:
            verbose = torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON)  # type: ignore[no-untyped-call]
            with verbose:
                torch.nn.functional.conv2d(torch.zeros(4, 16, 32, 32), torch.zeros(32, 16, 3, 3))
        finally:
            ctypes.CDLL(None).fflush(None)  # oneDNN writes through C's buffer
            os.dup2(stdout, 1)
            os.close(stdout)
        output.seek(0)
        return _isa_of(output.read().decode(errors="replace"))


def _isa_of(verbose: str) -> str:
    """Return the instruction set in oneDNN's verbose output."""
    return next((line.partition("isa:")[2].strip() for line in verbose.splitlines() if ",isa:" in line), "")


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _try(program: str, environment: Mapping[str, str]) -> tuple[Bfloat16, bool]:
    """Run the program in a child process; return its result, and True if the result would be the same next time."""
    command, verbose = [sys.executable, "-c", program], {"ONEDNN_VERBOSE": "1"}
    try:
        child = subprocess.run(
            command, env={**environment, **verbose}, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Bfloat16(works=False, problem=str(error)), False
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return Bfloat16(works=False, problem=f"ends a process with {name}"), name == "SIGILL"
    if child.returncode:
        return Bfloat16(works=False, problem=(child.stderr.strip().splitlines() or ["failed"])[-1]), False
    result = next(line for line in reversed(child.stdout.splitlines()) if line.startswith("{"))
    return Bfloat16(works=True, isa=_isa_of(child.stdout), **json.loads(result)), True


def _key(program: str) -> str:
    """Return a key for everything that the result depends on. Several machines may share a cache folder."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = "none"
    facts = [platform.node(), cpu_name(), *sorted(cpu_flags()), os.environ.get(ISA_VARIABLE, ""), program]
    return f"{cpu_name()}, torch {torch_version}, {hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def _cache_path() -> Path:
    return cache_folder() / "processor.json"


def _read_cache() -> dict[str, Any]:
    try:
        content = json.loads(_cache_path().read_text(encoding="utf-8"))
        return dict(content["bfloat16"]) if content["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_cache(results: Mapping[str, Any]) -> None:
    path = _cache_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, {"format": FORMAT, "bfloat16": results})
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error.strerror}), so bfloat16 is tried again next time", stacklevel=3
        )
