"""The emulated device computes what the CPU computes, refuses what a GPU refuses, and counts what a GPU would do.

Run by test_emulated.py in a process of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from millpond.devices import is_emulated, make_generator, pinned_bytes
from millpond.devices.counts import Counts, counting
from millpond.devices.emulated import DeviceMixError, EmulatedTensor, kernel, refusing_float64, register
from millpond.losses import normalise

register()
DEVICE = torch.device("emulated")


@pytest.fixture(autouse=True)
def counts() -> Iterator[Counts]:
    with counting() as found:
        yield found


def network() -> nn.Module:
    made = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 9, 5))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return made


def test_three_updates_equal_those_of_the_cpu() -> None:
    found = []
    for device in (torch.device("cpu"), DEVICE):
        net = network().to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, fused=True)
        for step in range(3):
            images = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(step)).to(device)
            optimizer.zero_grad()
            net(images).square().mean().backward()
            optimizer.step()
        found.append([parameter.detach().cpu() for parameter in net.parameters()])
    for one, other in zip(
        *found, strict=True
    ):  # convolutions may add in another order: it depends on addresses in memory
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_tensors_of_different_devices_do_not_mix() -> None:
    ours = torch.ones(3, device=DEVICE)
    with pytest.raises(DeviceMixError, match=r"add.Tensor got tensors on the CPU of shapes \[\(3,\)\]"):
        ours + torch.ones(3)
    with pytest.raises(DeviceMixError):
        torch.cat([ours, torch.ones(3)])
    assert (ours + torch.tensor(1.0)).cpu().tolist() == [
        2.0,
        2.0,
        2.0,
    ]  # a number of the host is an argument of a kernel


def test_arrays_cannot_be_made_of_its_tensors() -> None:
    ours = torch.ones(3, device=DEVICE)
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) first"):
        ours.numpy()
    with pytest.raises(TypeError):
        np.asarray(ours)
    assert ours.cpu().numpy().tolist() == ours.tolist() == [1.0, 1.0, 1.0]


def test_launches_waits_and_copies_are_counted(counts: Counts) -> None:
    ours = torch.arange(6.0).to(DEVICE)
    assert counts.totals() == {"launch": 0, "sync": 0, "upload": 0, "blocking upload": 1, "download": 0}
    ours.view(2, 3)[:, 1:].transpose(0, 1)  # views launch nothing
    assert counts.of("launch") == 0
    (ours * 2).sum()
    assert counts.of("launch") == 2
    ours.max().item()
    ours[ours > 2]
    ours.nonzero()
    assert counts.of("sync") == 3
    ours.cpu()
    assert counts.of("download") == 1
    assert counts.bytes["download"] == 24


def test_only_copies_from_pinned_memory_are_asynchronous(counts: Counts) -> None:
    ours = torch.zeros(8, dtype=torch.uint8, device=DEVICE)
    ours.copy_(torch.ones(8, dtype=torch.uint8), non_blocking=True)
    assert (counts.of("upload"), counts.of("blocking upload")) == (0, 1)
    pinned = pinned_bytes(8, DEVICE)
    pinned[:] = 7
    ours.copy_(pinned, non_blocking=True)
    ours[2:6].copy_(pinned[:4], non_blocking=True)
    assert (counts.of("upload"), counts.of("blocking upload")) == (2, 1)
    ours.copy_(pinned)
    assert counts.of("blocking upload") == 2
    assert ours.tolist() == [7] * 8


def test_counts_name_the_line_of_the_package_and_the_phase() -> None:
    advantage, alive = torch.ones(2, 3, device=DEVICE), torch.ones(2, 3, dtype=torch.bool, device=DEVICE)
    with counting(lambda: "train") as counts:
        normalise(advantage, alive)
    assert counts.of("launch", "train") == counts.of("launch") > 5
    assert counts.of("launch", "tra") == 0
    assert all(place.startswith("losses.py:") for place, _ in counts.at("launch"))


def test_float64_is_refused_where_asked() -> None:
    wide = torch.ones(2, device=DEVICE).double()
    assert wide.dtype == torch.float64
    with refusing_float64(), pytest.raises(TypeError, match="refuse float64"):
        torch.ones(2, device=DEVICE).double()
    with refusing_float64(), pytest.raises(TypeError, match="refuse float64"):
        torch.zeros(2, dtype=torch.float64, device=DEVICE)


def test_a_copy_of_a_module_has_its_own_parameters() -> None:
    net = nn.Linear(2, 2).to(DEVICE)
    other = copy.deepcopy(net)
    assert isinstance(other.weight, nn.Parameter)
    assert isinstance(other.weight, EmulatedTensor)
    with torch.no_grad():
        other.weight.zero_()
    assert bool(net.weight.abs().sum() > 0)


def test_parameters_can_become_views_of_one_matrix() -> None:
    net, flat = nn.Linear(2, 1, bias=False).to(DEVICE), torch.tensor([3.0, 4.0]).to(DEVICE)
    net.weight.data = flat.view(1, 2)
    flat.mul_(2)
    assert net(torch.ones(1, 2, device=DEVICE)).item() == 14.0


def test_views_made_without_gradients_can_be_written_later() -> None:
    ours = torch.zeros(4, device=DEVICE)
    with torch.inference_mode():
        half = ours[:2]
    half += 1
    assert ours.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_kernel_counts_as_one_launch(counts: Counts) -> None:
    @kernel
    def twice_plus_one(values: torch.Tensor) -> torch.Tensor:
        return values * 2 + 1

    assert twice_plus_one(torch.ones(2)).tolist() == [3.0, 3.0]
    assert counts.of("launch") == 0
    result = twice_plus_one(torch.ones(2, device=DEVICE))
    assert counts.operations["twice_plus_one"] == 1
    assert is_emulated(result.device)
    assert result.tolist() == [3.0, 3.0]


def test_generators_draw_the_numbers_of_the_cpu() -> None:
    drawn = [torch.rand(3, generator=make_generator(d, 5), device=d).cpu() for d in ("cpu", "emulated")]
    assert torch.equal(*drawn)
