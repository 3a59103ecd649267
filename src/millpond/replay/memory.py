"""A few loads and stores that Numba cannot express: unaligned, several bytes at once.

They check nothing. Whoever calls them has compared the positions with the ends of both buffers.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

BYTE = ir.IntType(8)
WORD = ir.IntType(64)


def _address(context: Any, builder: Any, signature: Any, args: Any, which: int, kind: Any) -> Any:
    """A pointer of LLVM type `kind` to element `args[which + 1]` of the byte array `args[which]`."""
    array = context.make_array(signature.args[which])(context, builder, args[which])
    return builder.bitcast(builder.gep(array.data, [args[which + 1]]), kind.as_pointer())


def _copier(width: int) -> Any:
    vector = ir.VectorType(BYTE, width)

    def copy(typing: Any, target: Any, to: Any, source: Any, start: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_address(context, builder, signature, args, 2, vector), align=1)
            builder.store(value, _address(context, builder, signature, args, 0, vector), align=1)
            return context.get_dummy_value()

        return types.void(target, types.uintp, source, types.uintp), generate

    return intrinsic(copy)


def _loader(bits: int, result: Any) -> Any:
    def load(typing: Any, source: Any, start: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_address(context, builder, signature, args, 0, ir.IntType(bits)), align=1)

        return result(source, types.uintp), generate

    return intrinsic(load)


def _fill16(typing: Any, target: Any, to: Any, pattern: Any) -> Any:
    """Store eight bytes twice."""
    vector = ir.VectorType(WORD, 2)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = ir.Constant(vector, ir.Undefined)
        for half in range(2):
            value = builder.insert_element(value, args[2], ir.Constant(ir.IntType(32), half))
        builder.store(value, _address(context, builder, signature, args, 0, vector), align=1)
        return context.get_dummy_value()

    return types.void(target, types.uintp, types.uint64), generate


def _crc32c_word(typing: Any, checksum: Any, word: Any) -> Any:
    """The processor's own CRC32C of eight bytes (SSE 4.2)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD, WORD])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind), args)

    return types.uint64(types.uint64, types.uint64), generate


copy16 = _copier(16)
copy32 = _copier(32)
load16 = _loader(16, types.uint16)
load32 = _loader(32, types.uint32)
load64 = _loader(64, types.uint64)
fill16 = intrinsic(_fill16)
crc32c_word = intrinsic(_crc32c_word)

# Numba compiles for this machine unless it was told of another processor.
HAS_CRC32C = bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False)) and not numba.config.CPU_NAME
