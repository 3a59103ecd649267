"""The report of a GPU: its limits, recipes on it, and their numbers against the CPU's, as one JSON file."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from millpond import __version__
from millpond.bench.gpu.compare import compare_with_cpu
from millpond.bench.gpu.hardware import ReportEffort, measure_hardware
from millpond.bench.gpu.recipes import time_recipe, variants_of
from millpond.bench.measure import Progress
from millpond.durable import replace_json
from millpond.formatting import sentence, size, table
from millpond.planner.estimate import require_device
from millpond.store import host_facts

RECIPES = ("grid", "metta", "mettagrid", "mixture", "reward-online")
FORMAT = 1
PRIVATE = ("command", "host", "git")  # of the facts about a machine: a report is sent to others


def gpu_report(
    recipes: Sequence[str] = RECIPES,
    *,
    device: str = "cuda",
    effort: ReportEffort | None = None,
    progress: Progress = lambda description: None,
) -> dict[str, Any]:
    """Measure a device and recipes on it. A part that fails is replaced by its error: the rest is still worth having."""
    require_device(device)
    if device == "emulated":
        from millpond.devices.emulated import register

        register()
    effort, on = effort or ReportEffort(), torch.device(device)
    began = time.monotonic()
    progress("the device's limits")
    report: dict[str, Any] = {
        "format": FORMAT,
        "millpond": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "quick": effort.quick,
        "machine": {name: value for name, value in host_facts().items() if name not in PRIVATE},
        "hardware": attempt(lambda: measure_hardware(on, effort)),
        "recipes": {},
    }
    for recipe in recipes:
        report["recipes"][recipe] = measure_recipe(recipe, on, effort, progress)
    report["minutes"] = (time.monotonic() - began) / 60
    return report


def measure_recipe(recipe: str, device: torch.device, effort: ReportEffort, progress: Progress) -> dict[str, Any]:
    """Return a recipe's numbers against the CPU's, and its times in every variant."""

    def in_folder(work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="millpond-gpu-") as folder:
            return attempt(lambda: work(Path(folder)))

    progress(f"{recipe}: comparing with the CPU")
    found: dict[str, Any] = {"against the CPU": in_folder(lambda folder: compare_with_cpu(recipe, device, folder, {}))}
    preset = "debug" if effort.quick else None
    variants = attempt(lambda: variants_of(recipe, str(device), preset))
    if "error" in variants:
        return {**found, **variants}
    found["variants"] = {}
    for name, changes in variants.items():
        progress(f"{recipe}, {name}")
        found["variants"][name] = in_folder(
            lambda folder, changes=changes: time_recipe(recipe, device, changes, effort, folder, progress)  # type: ignore[misc]
        )
    return found


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of some work, or its error with where it happened."""
    try:
        return work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__}: {error}", "at": f"{Path(last.filename).name}:{last.lineno}"}


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, report)


def show_report(report: dict[str, Any]) -> list[str]:
    """Return a report's main numbers as text."""
    hardware = report["hardware"]
    lines = [f"{hardware.get('name', hardware.get('device', 'device'))}, millpond {report['millpond']}"]
    if "error" in hardware:
        lines.append(f"limits: {hardware['error']}")
    else:
        launch = hardware["microseconds_per_launch"]
        lines.append(
            f"host: {launch['in place']:.1f} us per launch, {launch['read one number']:.1f} us to read a number"
        )
        best = hardware["operations_per_second"][-1]
        products = ", ".join(f"{name} {best[name] / 1e12:.1f}" for name in ("float32", "TF32", "bfloat16"))
        lines.append(f"products of {best['size']} x {best['size']}, TFLOP/s: {products}")
        copies = hardware["bytes_per_second"][-1]
        speeds = ", ".join(f"{name} {copies[name] / 1e9:.1f}" for name in ("upload, pinned", "download, pinned"))
        lines.append(f"copies of {size(copies['bytes'])}, GB/s: {speeds}, within {copies['on the device'] / 1e9:.1f}")
    rows, errors = [], []
    for recipe, found in report["recipes"].items():
        check = found["against the CPU"]
        errors += [f"{recipe}, against the CPU: {check['error']}"] if "error" in check else []
        for variant, times in found.get("variants", {}).items():
            if "error" in times:
                errors.append(f"{recipe}, {variant}: {times['error']}")
                continue
            units = "  ".join(f"{name} {unit['milliseconds']:.2f} ms" for name, unit in times["units"].items())
            memory = size(times["peak_bytes"]) if "peak_bytes" in times else "-"
            equal = "-" if "error" in check else "yes" if check["equal"] else "NO"
            rows.append((recipe, variant, f"{times['agent_steps_per_second']:,.0f}", units, memory, equal))
    header = ("recipe", "variant", "agent steps/s", "each", "peak memory", "equals the CPU")
    lines += ["", *table(header, rows)]
    for error in errors:
        lines += sentence(error, 2, "- ")
    return lines
