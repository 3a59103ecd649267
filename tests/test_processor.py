"""bfloat16 is tried in a child process before it is used, and a dead test process fails a test run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.processor import (
    BELOW_AMX,
    ISA_VARIABLE,
    PROBE,
    Bfloat16,
    ProcessorError,
    cache_folder,
    check_bfloat16,
    claims_amx,
    prepare_bfloat16,
)

AMX = {"avx512_bf16", "amx_bf16", "amx_tile"}
HEALTHY = 'print("{\\"speedup\\": 2.5}")'
TRAPS = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
TRAPS_WITH_AMX = f"import os\nif os.environ.get({ISA_VARIABLE!r}) != {BELOW_AMX!r}:\n    {TRAPS}\n{HEALTHY}"
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(ISA_VARIABLE, raising=False)


def counting(program: str, log: Path) -> str:
    """Return the program with a line that logs each run to a file."""
    return f"open({str(log)!r}, 'a').write('ran\\n')\n{program}"


def test_processor_without_problems_is_not_limited() -> None:
    assert check_bfloat16(program=HEALTHY) == Bfloat16(works=True, speedup=2.5)


def test_onednn_is_limited_below_amx_where_amx_traps() -> None:
    result = check_bfloat16(program=TRAPS_WITH_AMX)
    assert result == Bfloat16(works=True, max_isa=BELOW_AMX, speedup=2.5, problem="ends a process with SIGILL")
    assert "SIGILL" in str(result)
    assert BELOW_AMX in str(result)


def test_result_is_cached(tmp_path: Path) -> None:
    program = counting(TRAPS_WITH_AMX, tmp_path / "log")
    first = check_bfloat16(program=program)
    assert (tmp_path / "log").read_text() == "ran\n" * 2, "as the processor is, and limited"
    assert check_bfloat16(program=program) == first
    assert (tmp_path / "log").read_text() == "ran\n" * 2
    remembered = json.loads((cache_folder() / "processor.json").read_text())
    assert len(remembered["bfloat16"]) == 1


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
LIMITED_ONLY = f"import os\nif os.environ.get({ISA_VARIABLE!r}) != {BELOW_AMX!r}:\n    raise MemoryError\n{HEALTHY}"


@pytest.mark.parametrize("program", ["raise MemoryError", KILLED, LIMITED_ONLY])
def test_failure_that_may_pass_is_not_cached(program: str, tmp_path: Path) -> None:
    check_bfloat16(program=counting(program, tmp_path / "log"))
    trials = (tmp_path / "log").read_text()
    assert not (cache_folder() / "processor.json").exists()
    check_bfloat16(program=counting(program, tmp_path / "log"))
    assert (tmp_path / "log").read_text() == trials * 2


def test_timeout_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.processor.PROBE_SECONDS", 0.5)
    assert "timed out" in check_bfloat16(program="import time; time.sleep(60)").problem
    assert not (cache_folder() / "processor.json").exists()


def test_trap_in_both_trials_is_cached(tmp_path: Path) -> None:
    program = counting(TRAPS, tmp_path / "log")
    assert not check_bfloat16(program=program).works
    assert not check_bfloat16(program=program).works
    assert (tmp_path / "log").read_text() == "ran\n" * 2, "twice in the first call only: without limits, and limited"


def test_damaged_cache_is_rewritten() -> None:
    cache_folder().mkdir()
    (cache_folder() / "processor.json").write_text("{")
    assert check_bfloat16(program=HEALTHY).works
    assert json.loads((cache_folder() / "processor.json").read_text())["bfloat16"]


def test_limit_set_by_the_user_is_preserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "AVX2")
    result = check_bfloat16(program=counting(TRAPS, tmp_path / "log"))
    assert not result.works
    assert (tmp_path / "log").read_text() == "ran\n"


def test_only_processors_that_claim_amx_are_tried_before_a_run(tmp_path: Path) -> None:
    prepare_bfloat16({"avx2", "avx512_bf16"}, program=counting(TRAPS, tmp_path / "log"))
    assert not (tmp_path / "log").exists()
    assert claims_amx(AMX)


def test_bfloat16_that_never_works_is_an_error_with_a_fix() -> None:
    with pytest.raises(ProcessorError, match=r"SIGILL\); set trainer.precision=float32"):
        prepare_bfloat16(AMX, program=TRAPS)


def test_this_processor_has_a_result() -> None:
    result = check_bfloat16()
    assert result.works == (result.speedup > 0)
    assert result.works or result.problem


# In processes of their own, since oneDNN takes its limit once: too late after a convolution, in time before it.
LIMIT = """
import sys, warnings
from pathlib import Path
import torch
from millpond.processor import ProcessorError, limit_onednn, onednn_isa
if "late" in sys.argv:
    torch.nn.functional.conv2d(torch.zeros(4, 16, 32, 32), torch.zeros(32, 16, 3, 3))
try:
    limit_onednn("SSE41", "Intel SSE4.1")
    print("limited")
except ProcessorError as error:
    print(error)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's limits are those of x86")
@pytest.mark.parametrize("moment", ["in time", "late"])
def test_onednn_is_limited_before_its_first_use_or_not_at_all(moment: str) -> None:
    child = subprocess.run([sys.executable, "-c", LIMIT, moment], capture_output=True, text=True, check=True)
    if moment == "late":
        assert "torch has used it already" in child.stdout
        assert "start Python with ONEDNN_MAX_CPU_ISA=SSE41" in child.stdout
    else:
        assert child.stdout == "limited\n"


def test_bfloat16_run_limits_onednn_and_reports_it(tmp_path: Path) -> None:
    """On a processor that claims AMX and traps, the run continues with a limit and reports it in one line."""
    traps_with_amx = TRAPS_WITH_AMX.replace(HEALTHY, PROBE)
    code = (
        "import sys, millpond.processor as processor\n"
        f"processor.cpu_flags = lambda: {AMX!r}\n"
        f"processor.prepare_bfloat16.__kwdefaults__['program'] = {traps_with_amx!r}\n"
        "sys.argv = ['millpond', 'train', 'grid', '--debug', 'trainer.precision=bfloat16']\n"
        "from millpond.cli import main; main()\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert f"oneDNN is limited to {BELOW_AMX}" in child.stderr


def test_dead_test_process_fails_the_run_with_the_name_of_the_test(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(
            "import os, signal\n"
            "def test_before(): pass\n"
            f"def test_dies(): os.kill(os.getpid(), signal.SIGKILL) if {name == 'a'} else None\n"
        )
    options = ["-n", "2", "--dist", "loadfile", "-p", "tests.conftest", "-p", "no:importnb", "--rootdir", str(tmp_path)]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--override-ini=addopts=--max-worker-restart=0", "."],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert child.returncode == 1
    assert "test_a.py::test_dies ended its test process" in child.stdout
