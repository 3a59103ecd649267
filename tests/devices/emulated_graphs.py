"""Captured work does the same as work that is not. Run by test_emulated.py in a process of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millpond.devices import DeviceError, make_generator
from millpond.devices.counts import counting
from millpond.devices.emulated import register
from millpond.devices.graphs import EAGER_CALLS, Replayed

register()
DEVICE = torch.device("emulated")


def test_replays_read_and_write_the_same_memory() -> None:
    number, total = torch.zeros(2, device=DEVICE), torch.zeros(2, device=DEVICE)

    def work() -> Tensor:
        total.add_(number * 2)
        return total + 1

    replayed = Replayed(DEVICE, work)
    expected = 0.0
    for call in range(EAGER_CALLS + 4):
        number.fill_(call)
        expected += 2 * call
        with counting() as counts:
            result = replayed()
        assert result.tolist() == [expected + 1] * 2
        assert counts.of("launch") == (3 if call <= EAGER_CALLS else 1)


def test_updates_by_a_graph_equal_updates_without() -> None:
    def trained(captured: bool) -> list[Tensor]:
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(DEVICE)
        rate = torch.tensor(0.1).to(DEVICE)
        optimizer = torch.optim.Adam(net.parameters(), lr=rate, fused=True, capturable=True)
        inputs = torch.zeros(5, 3, device=DEVICE)

        def work() -> Tensor:
            for parameter in net.parameters():
                parameter.grad = None
            loss = net(inputs).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        replayed, losses = Replayed(DEVICE, work), []
        for step in range(8):
            inputs.copy_(torch.randn(5, 3, generator=torch.Generator().manual_seed(step)))
            rate.fill_(0.1 / (step + 1))
            losses.append(float(replayed() if captured else work()))
        return [torch.tensor(losses), *(parameter.detach().cpu() for parameter in net.parameters())]

    for one, other in zip(trained(False), trained(True), strict=True):
        assert torch.equal(one, other)


def test_each_replay_draws_new_numbers() -> None:
    generator = make_generator(DEVICE, 3)
    replayed = Replayed(DEVICE, lambda: torch.rand(2, device=DEVICE, generator=generator), generator)
    drawn = [replayed().tolist() for _ in range(EAGER_CALLS + 3)]
    plain = torch.Generator().manual_seed(3)
    assert drawn == [torch.rand(2, generator=plain).tolist() for _ in drawn]


@pytest.mark.parametrize(
    ("forbidden", "message"),
    [
        (lambda numbers: numbers.sum().item(), "sync"),
        (lambda numbers: numbers[numbers > 0], "sync"),
        (lambda numbers: numbers.cpu(), "download"),
        (lambda numbers: numbers.copy_(torch.ones(2)), "blocking upload"),
    ],
)
def test_waits_and_copies_cannot_be_captured(forbidden: object, message: str) -> None:
    numbers = torch.ones(2, device=DEVICE)
    replayed = Replayed(DEVICE, lambda: forbidden(numbers))  # type: ignore[operator]
    for _ in range(EAGER_CALLS):
        replayed()
    with pytest.raises(DeviceError, match=rf"is a {message}, which a captured graph cannot have.*trainer.graphs=false"):
        replayed()
