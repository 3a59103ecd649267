"""The report of a GPU and the memory in use, on the emulated device. Run by test_emulated.py in a process of its own."""

from __future__ import annotations

import torch

from millpond.bench.gpu.hardware import ReportEffort
from millpond.bench.gpu.report import gpu_report
from millpond.devices.counts import counting
from millpond.devices.emulated import register
from millpond.devices.live_memory import measuring_memory

register()
DEVICE = torch.device("emulated")


def test_report_of_the_emulated_device_measures_recipes_and_equals_the_cpu() -> None:
    report = gpu_report(["gymnasium:CartPole-v1", "reward-online"], device="emulated", effort=ReportEffort.small())
    assert report["hardware"]["emulated"] is True
    assert report["hardware"]["microseconds_per_launch"]["product"] > 0
    for found in report["recipes"].values():
        assert found["against the CPU"]["equal"] is True
        assert found["variants"]["as it is"]["units"]["update"]["milliseconds"] > 0


def test_memory_counts_blocks_from_their_first_tensor_to_their_last() -> None:
    with measuring_memory() as memory:
        one = torch.zeros(1_000, device=DEVICE)
        part = one[10:20]
        assert memory.bytes == memory.peak == 4_000
        other = one * 2
        assert memory.bytes == 8_000
        del one
        assert memory.bytes == 8_000  # a part of it is still there
        del part
        assert memory.bytes == 4_000
        other += 1
        assert memory.bytes == 4_000
        memory.reset_peak()
        (other + 1).sum()
        del other
        assert memory.bytes == 0
        assert memory.peak >= 8_000


def test_memory_of_a_graph_is_held_until_it_has_gone_backward() -> None:
    weight = torch.zeros(100, 100, device=DEVICE, requires_grad=True)
    with measuring_memory() as memory:
        loss = (torch.ones(50, 100, device=DEVICE) @ weight).tanh().sum()
        assert memory.bytes >= 2 * 50 * 100 * 4  # the inputs, and the outputs of tanh
        loss.backward()
        assert memory.peak >= 2 * 50 * 100 * 4 + 100 * 100 * 4
        del loss
        assert memory.bytes == 100 * 100 * 4  # the gradient


def test_work_of_kernels_is_counted_by_phase() -> None:
    left, right = torch.ones(8, 16, device=DEVICE), torch.ones(16, 4, device=DEVICE)
    with counting(lambda: "train/backward") as counts:
        (left @ right).sum()
        left.index_select(0, torch.tensor([1]).to(DEVICE))
    work = counts.work("train")
    assert work["operations"] == 2 * 8 * 16 * 4
    assert work["bytes"] == 4 * (8 * 16 + 16 * 4 + 8 * 4) + 4 * (8 * 4 + 1) + 2 * 4 * 16
    assert counts.work("tra") == {"operations": 0, "bytes": 0}
