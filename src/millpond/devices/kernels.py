"""Operations that a device does in one launch: a Triton kernel on CUDA, and its plain version elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from millpond.devices import is_emulated


class DeviceKernel:
    """A function that writes its results into its arguments, and a Triton function of the same signature.

    The plain version is the definition, and is computed where Triton is not: on MPS, and on Windows. The emulated device
    computes it as well, and counts one launch.
    """

    def __init__(self, plain: Callable[..., None], path: str) -> None:
        functools.update_wrapper(self, plain)
        self.plain, self.path = plain, path

    def __call__(self, first: torch.Tensor, *others: Any, **options: Any) -> None:
        if first.device.type == "cuda" and has_triton():
            self.triton(first, *others, **options)
        elif is_emulated(first.device):
            from millpond.devices.emulated import kernel

            kernel(self.plain)(first, *others, **options)
        else:
            self.plain(first, *others, **options)

    @property
    def triton(self) -> Callable[..., None]:
        """The version in Triton."""
        return _loaded(self.path)


def device_kernel(path: str) -> Callable[[Callable[..., None]], DeviceKernel]:
    """Make a plain function a kernel whose version in Triton is at `path`, written `package.module:function`."""
    return lambda plain: DeviceKernel(plain, path)


@functools.cache
def has_triton() -> bool:
    return find_spec("triton") is not None


@functools.cache
def _loaded(path: str) -> Callable[..., None]:
    module, _, name = path.partition(":")
    function: Callable[..., None] = getattr(import_module(module), name)
    return function
