"""A device's limits: host time per launch, waits, copies, matrix products, its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from millpond.bench.measure import median_seconds
from millpond.devices import EMULATED, is_emulated, pinned_bytes

MICROSECONDS = 1e6
SMALL = 1_024  # numbers of a tensor that every device processes faster than the host launches


@dataclass(frozen=True)
class ReportEffort:
    """Sizes of what is measured. `quick` is for trying the command: its numbers mean nothing."""

    launches: int = 2_000
    copy_bytes: tuple[int, ...] = (4 << 10, 256 << 10, 16 << 20, 256 << 20)
    matrix_sizes: tuple[int, ...] = (1_024, 4_096, 8_192)
    repeats: int = 10
    iterations: int = 3  # of each recipe, after one to warm up
    seconds: float = 25.0  # of each recipe and variant; then no further iteration starts
    quick: bool = False

    @staticmethod
    def small() -> ReportEffort:
        return ReportEffort(
            launches=20, copy_bytes=(4 << 10,), matrix_sizes=(64,), repeats=2, iterations=1, seconds=60.0, quick=True
        )


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until the device has done everything."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    if is_emulated(device):
        synchronize: Callable[[], None] = getattr(torch, EMULATED).synchronize
        return synchronize
    return lambda: None


def describe_device(device: torch.device) -> dict[str, Any]:
    """Return what is known about a device."""
    facts: dict[str, Any] = {"device": str(device), "emulated": is_emulated(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "count": torch.cuda.device_count(),
        }
    try:
        import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]

        facts["triton"] = triton.__version__
    except ImportError:
        facts["triton"] = None
    return facts


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Multiply float32 matrices with torch's precision `highest` (float32) or `high` (TF32, where the device has it)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure_launches(device: torch.device, effort: ReportEffort) -> dict[str, float]:
    """Return the host's microseconds per launch of kernels of several kinds, and per wait for the device."""
    wait = synchronizer(device)
    numbers, weight = torch.ones(SMALL, device=device), torch.ones(32, 32, device=device)
    rows = torch.ones(32, 32, device=device)
    out = torch.empty_like(numbers)
    flags = torch.zeros(4, device=device)

    def repeated(work: Callable[[], object]) -> float:
        def many() -> None:
            for _ in range(effort.launches):
                work()

        def each() -> float:
            wait()
            began = time.perf_counter()
            many()
            seconds = time.perf_counter() - began
            wait()
            return seconds / effort.launches * MICROSECONDS

        return min(each() for _ in range(3))

    parameters = [torch.ones(64, device=device) for _ in range(16)]
    return {
        "in place": repeated(lambda: numbers.add_(0.0)),
        "to a given tensor": repeated(lambda: torch.mul(numbers, 1.0, out=out)),
        "to a new tensor": repeated(lambda: numbers * 1.0),
        "product": repeated(lambda: rows @ weight),
        "16 tensors at once": repeated(lambda: torch._foreach_add_(parameters, 0.0)),
        "with autograd, forward and backward": repeated(_step_with_autograd(device)),
        "read one number": repeated(lambda: flags[0].item()),
    }


def _step_with_autograd(device: torch.device) -> Callable[[], object]:
    """Return a call that launches about four kernels: a product, a sum, and two of their backward passes."""
    inputs, weight = torch.ones(32, 32, device=device), torch.ones(32, 32, device=device, requires_grad=True)

    def step() -> None:
        torch.autograd.grad((inputs @ weight).sum(), [weight])

    return step


def measure_copies(device: torch.device, effort: ReportEffort) -> list[dict[str, Any]]:
    """Return bytes per second of copies: to the device and back, from pinned memory and from other, and within it."""
    wait, found = synchronizer(device), []
    for size in effort.copy_bytes:
        on_device, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        pinned, pageable = pinned_bytes(size, device), torch.zeros(size, dtype=torch.uint8)

        def rate(target: torch.Tensor, source: torch.Tensor) -> float:
            def copy() -> None:
                target.copy_(source, non_blocking=True)
                wait()

            return size / median_seconds(copy, effort.repeats)  # noqa: B023

        found.append(
            {
                "bytes": size,
                "upload, pinned": rate(on_device, pinned),
                "upload, pageable": rate(on_device, pageable),
                "download, pinned": rate(pinned, on_device),
                "download, pageable": rate(pageable, on_device),
                "on the device": rate(other, on_device),
            }
        )
    return found


def measure_products(device: torch.device, effort: ReportEffort) -> list[dict[str, Any]]:
    """Return operations per second of matrix products, by size and precision."""
    wait, found = synchronizer(device), []
    for size in effort.matrix_sizes:
        row: dict[str, Any] = {"size": size}
        for name, dtype, precision in (
            ("float32", torch.float32, "highest"),
            ("TF32", torch.float32, "high"),
            ("bfloat16", torch.bfloat16, "highest"),
        ):
            left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))

            def multiply(left: torch.Tensor = left, right: torch.Tensor = right) -> None:
                left @ right
                wait()

            with matmul_precision(precision):
                row[name] = 2 * size**3 / median_seconds(multiply, effort.repeats)
        found.append(row)
    return found


def measure_hardware(device: torch.device, effort: ReportEffort) -> dict[str, Any]:
    """Return everything about a device that does not depend on a recipe."""
    return {
        **describe_device(device),
        "microseconds_per_launch": measure_launches(device, effort),
        "bytes_per_second": measure_copies(device, effort),
        "operations_per_second": measure_products(device, effort),
        "effort": asdict(effort),
    }
