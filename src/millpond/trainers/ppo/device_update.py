"""The update on a device: one upload per minibatch and, with `trainer.graphs`, one captured graph for all that follows it.

Everything that changes between minibatches is copied to where the graph reads it: rows and coefficients by the upload,
advantages once per iteration, the learning rate when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from millpond.devices import DeviceError
from millpond.devices.graphs import Replayed, has_graphs
from millpond.losses import Coefficients, Scale
from millpond.rollout.micro_batch import Advantages
from millpond.rollout.sampling import Draw
from millpond.trainers.ppo.device_loss import DrawUploads

# (advantages, coefficients, rows, weights) -> metrics, valid steps
Body = Callable[[Advantages, Coefficients, Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]
AGENT_STEPS = "agent_steps"
BAKED = ("ppo.weight_decay", "ppo.adam_eps", "ppo.adam_beta1", "ppo.adam_beta2")  # constants of a captured optimizer


class DeviceUpdate:
    """Sends what a minibatch needs, and trains on it."""

    def __init__(self, rows: int, device: torch.device, *, captures: bool = False) -> None:
        if captures and not has_graphs(device):
            raise DeviceError(f"trainer.graphs=true, but device={device.type} cannot capture graphs; set it to false")
        self.device, self.captures = device, captures
        self.uploads = DrawUploads(rows, device)
        self._advantages: Advantages | None = None  # those of the last call
        self._static: Advantages | None = None  # in the memory that the graph reads
        self._scale: Scale | None = None
        self._replayed: Replayed[Tensor] | None = None
        self._names: list[str] = []

    def __call__(
        self, draw: Draw, advantages: Advantages, coefficients: Coefficients, body: Body
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the metrics of a minibatch and the number of its valid steps, on the device."""
        picked, weight, numbers = self.uploads.send(draw, coefficients)
        coefficients = replace(coefficients, on_device=numbers)
        if not self.captures:
            result = body(advantages, coefficients, picked, weight)
            self.uploads.release()
            return result
        static = self._in_place(advantages)
        coefficients = replace(coefficients, value_scale=self._scale_in_place(coefficients.value_scale))
        if self._replayed is None:

            def work() -> Tensor:
                metrics, steps = body(static, coefficients, picked, weight)
                self._names = [*metrics, AGENT_STEPS]
                return torch.stack([*metrics.values(), steps.float()])

            self._replayed = Replayed(self.device, work)
        values = self._replayed().clone()  # the next replay overwrites its own
        self.uploads.release()
        metrics = dict(zip(self._names, values.unbind(), strict=True))
        return metrics, metrics.pop(AGENT_STEPS)

    def _in_place(self, advantages: Advantages) -> Advantages:
        """Copy new advantages to where the graph reads them."""
        if self._static is None:
            scaled = advantages.raw if advantages.scaled is advantages.raw else advantages.scaled.clone()
            self._static = replace(advantages, scaled=scaled, valid_steps=advantages.valid_steps.clone())
        elif advantages is not self._advantages:
            if advantages.scaled is not advantages.raw:
                self._static.scaled.copy_(advantages.scaled)
            self._static.valid_steps.copy_(advantages.valid_steps)
        self._advantages = advantages
        return self._static

    def _scale_in_place(self, scale: Scale | None) -> Scale | None:
        if scale is None or not isinstance(scale.mean, Tensor) or not isinstance(scale.deviation, Tensor):
            return scale
        if self._scale is None:
            self._scale = Scale(scale.mean.clone(), scale.deviation.clone())
        else:
            for name in ("mean", "deviation"):
                getattr(self._scale, name).copy_(getattr(scale, name))
        return self._scale


def hold_learning_rate_on_device(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Make the learning rate a number on the device, as captured optimizers read it."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"])).to(device)


def require_constant_decay(scheduled: Mapping[str, float]) -> None:
    """Raise DeviceError if a number changes that a captured optimizer cannot read again."""
    changing = [path for path in BAKED if path in scheduled]
    if changing:
        raise DeviceError(
            f"trainer.graphs=true captures {changing[0]} as a constant, but there is a schedule for it; remove the schedule, "
            "or set trainer.graphs=false"
        )
