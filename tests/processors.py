"""Run the tests of the numerical packages as other processors would.

    python tests/processors.py [NAME ...] [-- PYTEST OPTIONS]

Torch, oneDNN, MKL and numba are told by environment variables to use fewer instructions than this processor has, so each
run takes the code paths of an older one. More than it has cannot be emulated: such a processor is left out, and the
summary says so. Exit 1 if any test failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from millpond.processor import cpu_flags

ROOT = Path(__file__).parent.parent
PACKAGES = ("fast", "policies", "trainers", "kernels", "rollout", "planner")
AVX2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe"
PROCESSORS: dict[str, tuple[set[str], dict[str, str]]] = {  # required flags, variables that restrict libraries to them
    "this": (set(), {}),
    "generic": (
        set(),
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "NUMBA_CPU_NAME": "generic"},
    ),
    "avx2": (
        {"avx2", "fma"},
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "NUMBA_CPU_NAME": "haswell",
            "NUMBA_CPU_FEATURES": AVX2,
        },
    ),
    "avx512": ({"avx512f", "avx512bw"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "avx512-bf16": ({"avx512_bf16"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}),  # without AMX
}


def run_tests(name: str, options: list[str]) -> str:
    """Run the tests as one processor would; return a line for the summary."""
    needed, variables = PROCESSORS[name]
    if missing := needed - cpu_flags():
        return f"{name}: not run, since this processor has no {', '.join(sorted(missing))}"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", *options]
    command += [f"tests/{package}" for package in PACKAGES]
    print(f"== {name}: {' '.join(f'{key}={value}' for key, value in variables.items()) or 'as it is'}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:  # so that nothing cached for another processor is used
        caches = {"XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        environment = {**os.environ, **variables, **caches}
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    outcome = "passed" if code == 0 else f"FAILED (exit {code})"
    return f"{name}: {outcome} in {time.monotonic() - start:.0f} s"


def main() -> None:
    names, _, options = " ".join(sys.argv[1:]).partition("--")
    wanted = names.split() or list(PROCESSORS)
    if unknown := set(wanted) - set(PROCESSORS):
        sys.exit(f"no such processor: {', '.join(sorted(unknown))}; there are {', '.join(PROCESSORS)}")
    summary = [run_tests(name, options.split()) for name in wanted]
    print("\n" + "\n".join(summary))
    sys.exit(any("FAILED" in line for line in summary))


if __name__ == "__main__":
    main()
