"""Operations that Numba lacks: unaligned loads and stores, the CRC32C instruction, and calls of C without the GIL.

They check nothing: the caller has compared all positions with the ends of the buffers.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import lz4.block
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from millpond.compiled import target_features

# Positions in buffers are unsigned: Numba then omits the code for negative indices.
Position = np.uintp

WORD = ir.IntType(64)


def _loader(bits: int, result: Any) -> Any:
    """Return an intrinsic that loads a number of `bits` bits from any position of a byte array."""

    def load(typing: Any, source: Any, start: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())
            return builder.load(address, align=1)

        return result(source, types.uintp), generate

    return intrinsic(load)


def _storer(bits: int, value: Any) -> Any:
    """Return an intrinsic that stores a number of `bits` bits at any position of a byte array."""

    def store(typing: Any, target: Any, to: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())
            builder.store(args[2], address, align=1)
            return context.get_dummy_value()

        return types.void(target, types.uintp, value), generate

    return intrinsic(store)


def _crc32c_word(typing: Any, checksum: Any, word: Any) -> Any:
    """Update a CRC32C by eight bytes with the processor's instruction (SSE 4.2)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD, WORD])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind), args)

    return types.uint64(types.uint64, types.uint64), generate


load32 = _loader(32, types.uint32)
load64 = _loader(64, types.uint64)
store32 = _storer(32, types.uint32)
crc32c_word = intrinsic(_crc32c_word)

HAS_CRC32C = "sse4.2" in target_features()


LZ4_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)


def compress_block(source: int, target: int, nbytes: int, room: int) -> int:
    """Do what LZ4_compress_default does, through the Python module and with the GIL; return 0 if it does not fit."""
    block = lz4.block.compress(ctypes.string_at(source, nbytes), store_size=False)
    if len(block) > room:
        return 0
    ctypes.memmove(target, block, len(block))
    return len(block)


def decompress_block(source: int, target: int, nbytes: int, room: int) -> int:
    """Do what LZ4_decompress_safe does, in the same way; return -1 if the bytes are not a block of at most `room` bytes."""
    try:
        data = lz4.block.decompress(ctypes.string_at(source, nbytes), uncompressed_size=room)
    except lz4.block.LZ4BlockError:
        return -1
    ctypes.memmove(target, data, len(data))
    return len(data)


def _lz4(name: str, through_python: Any) -> Any:
    """Return a function of the lz4 package's liblz4: (source, target, source bytes, target bytes) -> bytes.

    The package's builds for Windows do not export these functions; compiled code then calls back into Python.
    """
    if llvmlite.binding.address_of_symbol(name) is None:
        callback = LZ4_FUNCTION(through_python)
        _callbacks.append(callback)
        llvmlite.binding.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)
    return types.ExternalFunction(name, types.int32(types.uintp, types.uintp, types.int32, types.int32))


_callbacks: list[Any] = []  # keeps them alive: compiled code has their addresses
llvmlite.binding.load_library_permanently(lz4.block._block.__file__)
lz4_compress = _lz4("LZ4_compress_default", compress_block)
lz4_decompress = _lz4("LZ4_decompress_safe", decompress_block)  # stays inside both buffers, whatever the bytes are

# memcpy: (target, source, bytes) -> target.
copy_bytes: Any = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
# The system call. Called only if `os.RWF_NOWAIT` is defined, that is, if the system has it.
preadv2: Any = types.ExternalFunction(
    "preadv2", types.intp(types.int32, types.uintp, types.int32, types.int64, types.int32)
)
