"""A GPU that does not exist: torch's device `emulated` computes in the memory of the CPU and behaves like a GPU otherwise.

Operations on tensors of different devices raise, arrays cannot be made from its tensors, and every kernel launch, copy and
wait is counted (`millpond.devices.counts`). Numbers are those of the CPU's kernels. What it cannot show: speed, races
between streams, captured graphs, and kernels of the device itself.

It is a backend in Python (torch's key PrivateUse1): a tensor of the device wraps one of the CPU, and every operation on it is
received by `__torch_dispatch__`, below autograd. Nothing has to be compiled.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_map

from millpond.devices import EMULATED, DeviceError
from millpond.devices.counts import Kind, count_work
from millpond.devices.counts import count as add_to_counts
from millpond.devices.emulated_graphs import note, require_allowed
from millpond.devices.emulated_streams import host_waits, start_download, start_upload, used
from millpond.devices.live_memory import HeldBlock, hold

CPU = torch.device("cpu")
# Operations that return a view, or memory that is not written: no kernel runs.
WITHOUT_KERNEL = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "view", "lift_fresh",
     "_reshape_alias", "_unsafe_view", "is_same_size", "set_", "resize_", "record_stream", "is_pinned"}
)  # fmt: skip
# Operations whose result the host has to know.
SYNCING = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "is_nonzero",
     "equal", "bincount", "histc", "allclose"}
)  # fmt: skip
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
COPIES = frozenset({"_to_copy", "copy_", "_copy_from"})

Function = TypeVar("Function", bound=Callable[..., Any])


class DeviceMixError(RuntimeError):
    """An operation got tensors of the emulated device and of the CPU."""


class EmulatedTensor(torch.Tensor):
    """A tensor of the emulated device; `host` has its numbers."""

    host: torch.Tensor
    _held: HeldBlock | None  # for `live_memory`

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> EmulatedTensor:
        made: EmulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device(EMULATED, 0),
        )
        made.host = host.detach() if host.requires_grad else host
        made._held = hold(host)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, new)  # type: ignore[attr-defined]
        assert isinstance(new, EmulatedTensor)
        self.host, self._held = new.host, new._held

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"emulated({self.host!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        new = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=self.requires_grad)
        memo[id(self)] = new
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a tensor of the emulated device cannot be saved; save its copy on the CPU")


def count(kind: Kind, operation: str, nbytes: int = 0) -> None:
    """Count what the device is asked to do; a captured graph refuses some of it."""
    require_allowed(kind, operation)
    add_to_counts(kind, operation, nbytes)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU, and count what it would have been on a GPU."""
    name = func._schema.name.partition("::")[2]
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        made_of = func.decompose(*args, **kwargs)
        if made_of is not NotImplemented:
            return made_of
    if func.namespace == "millpond":  # a custom operation: what it is made of runs on the device
        return torch._library.custom_ops.OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    own = [tensor for tensor in tensors if isinstance(tensor, EmulatedTensor)]
    others = [tensor for tensor in tensors if not isinstance(tensor, EmulatedTensor)]
    target = kwargs.get("device")
    on_device = target is None or torch.device(target).type == EMULATED
    if not func.is_view:
        used([tensor.host for tensor in own if tensor is not args[0] or name != "copy_"])
    if name in COPIES:
        on_device = _count_copy(name, args, kwargs, on_device)
        asynchronous = name == "copy_" and (kwargs.get("non_blocking") or (len(args) > 2 and bool(args[2])))
        if asynchronous and _start_copy(args[0], args[1]):
            return args[0]
    else:
        _count_kernel(func, name, args, own, others)
    host_kwargs = tree_map(_host, kwargs)
    if "device" in host_kwargs:
        host_kwargs["device"] = CPU
    host_kwargs.pop("pin_memory", None)
    host_args = tree_map(_host, args)
    result = func(*host_args, **host_kwargs)
    if not func.is_view and name not in WITHOUT_KERNEL:
        note(func, host_args, host_kwargs, result)
        if name not in COPIES:
            count_work(func, host_args, host_kwargs, result)
    written = _written(func, args, kwargs)
    if written is not None:
        return written
    if name == "_local_scalar_dense" or not on_device:
        return result
    if torch.is_inference_mode_enabled() and (func.is_view or name in WITHOUT_KERNEL) and not own[0].is_inference():
        with torch.inference_mode(False):  # a view of an ordinary tensor is an ordinary tensor
            return tree_map(_wrap, result)
    return tree_map(_wrap, result)


def _start_copy(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Start a copy between pinned memory and the device that the host does not wait for; return False if it has to wait."""
    if isinstance(target, EmulatedTensor) == isinstance(source, EmulatedTensor):
        return False
    upload = isinstance(target, EmulatedTensor)
    if not is_pinned(source if upload else target) or target.shape != source.shape:
        return False
    if upload and target.dtype == source.dtype and target.is_contiguous():
        start_upload(_host(target), source)
    elif upload:
        start_upload(torch.empty_like(source), source)  # to a buffer of the device first
        _host(target).copy_(source)
    else:
        start_download(target, _host(source).to(target.dtype))
    return True


def _count_copy(name: str, args: Any, kwargs: dict[str, Any], on_device: bool) -> bool:
    """Count a copy; return True if the result is on the device."""
    source, target = (args[0], None) if name == "_to_copy" else (args[1], args[0])
    from_device, to_device = isinstance(source, EmulatedTensor), on_device
    if target is not None:
        to_device = isinstance(target, EmulatedTensor)
    if from_device and to_device:
        count("launch", name)
    elif from_device:
        count("download", name, source.nbytes)
        asynchronous = target is not None and (kwargs.get("non_blocking") or (len(args) > 2 and bool(args[2])))
        if target is None or not (asynchronous and is_pinned(target)):
            host_waits()
        if target is not None and target.dtype != source.dtype:
            count("launch", "copy_ to another dtype")
    else:
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and bool(args[2]))
        count("upload" if asynchronous and is_pinned(source) else "blocking upload", name, source.nbytes)
        if target is not None and (target.dtype != source.dtype or not target.is_contiguous()):
            count("launch", "copy_ to another layout")
    return to_device


def _count_kernel(func: Any, name: str, args: Any, own: list[Any], others: list[torch.Tensor]) -> None:
    mixed = [tensor for tensor in others if tensor.dim() > 0]
    if name in INDEXING:
        indices = [index for index in args[1] if index is not None]
        for index in indices:
            if not isinstance(index, EmulatedTensor):
                count("blocking upload", name, index.nbytes)
            if index.dtype in (torch.bool, torch.uint8):
                one_value = name.startswith("index_put") and args[2].numel() == 1
                if not one_value:  # how many there are decides the shape of the result
                    count("sync", f"{name} by booleans")
        mixed = [tensor for tensor in mixed if all(tensor is not index for index in indices)]
    if mixed:
        raise DeviceMixError(
            f"{func.name()} got tensors on the CPU of shapes {[tuple(tensor.shape) for tensor in mixed]} "
            f"next to {[tuple(tensor.shape) for tensor in own]} on the emulated device"
        )
    if name in SYNCING:
        count("sync", name)
        host_waits()
    if name not in WITHOUT_KERNEL and not func.is_view and name != "_local_scalar_dense":
        count("launch", name)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what an in-place operation returns: the tensors that it wrote to; None if it is none."""
    if not any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.returns):
        return None
    outs = [
        kwargs[argument.name] if argument.name in kwargs else args[place]
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and (argument.name in kwargs or place < len(args))
    ]
    for out in outs:
        if isinstance(out, EmulatedTensor) and out.shape != out.host.shape:  # resized in place
            torch.Tensor.data.__set__(out, EmulatedTensor(out.host))  # type: ignore[attr-defined]
    return outs[0] if len(func._schema.returns) == 1 else tuple(outs)


def _host(value: Any) -> Any:
    return value.host if isinstance(value, EmulatedTensor) else value


def _wrap(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, EmulatedTensor):
        return value
    if value.dtype == torch.float64 and _float64_is_refused:
        raise TypeError("the emulated device is set to refuse float64, which some devices lack: use float32")
    return EmulatedTensor(value)


def kernel(function: Function) -> Function:
    """Count calls with tensors of the emulated device as one launch each; `function` gets their tensors of the CPU."""

    @functools.wraps(function)
    def launch(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(value, EmulatedTensor) for value in tree_flatten((args, kwargs))[0]):
            return function(*args, **kwargs)
        count("launch", function.__name__)
        used([value.host for value in tree_flatten((args, kwargs))[0] if isinstance(value, EmulatedTensor)])
        host_args, host_kwargs = tree_map(_host, args), tree_map(_host, kwargs)
        with torch.no_grad():
            result = function(*host_args, **host_kwargs)
        note(function, host_args, host_kwargs, result)
        return tree_map(_wrap, result)

    return launch  # type: ignore[return-value]


# ---- pinned memory

_pinned: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the memory of a tensor of the CPU as pinned."""
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = storage
    tensor._pinned_storage = storage  # type: ignore[attr-defined]  # kept alive with the tensor
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


# ---- the backend

_registered = False
_float64_is_refused = False
_library: Any = None  # kept, so that its kernels stay registered


def refuses_float64() -> bool:
    """True within `refusing_float64`."""
    return _float64_is_refused


@contextmanager
def refusing_float64() -> Iterator[None]:
    """Within this context the device has no float64, like MPS."""
    global _float64_is_refused
    _float64_is_refused = True
    try:
        yield
    finally:
        _float64_is_refused = False


def register() -> None:
    """Add the device `emulated` to torch, once per process."""
    global _registered, _library
    if _registered:
        return
    try:
        from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
    except ImportError:
        raise DeviceError(
            f"device={EMULATED}: torch {torch.__version__} cannot emulate a device; install a newer torch"
        ) from None

    class Module(_DummyBackendModule):
        def synchronize(self, device: Any = None) -> None:
            count("sync", "synchronize")
            host_waits()

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return []

    _setup_privateuseone_for_python_backend(EMULATED, backend_module=Module())
    make_library: Any = torch.library.Library
    _library = make_library("aten", "IMPL")
    for name, function in (("empty.memory_format", _empty), ("empty_strided", _empty_strided)):
        _library.impl(name, function, "PrivateUse1")
    _registered = True


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Any:
    return _wrap(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Any:
    return _wrap(torch.empty_strided(size, stride, dtype=dtype))
