"""Chunks packed with lzf and given their checksum, in threads of our own.

h5py packs a chunk with its lock held, one after the other, and that is most of the time of writing. The functions that
do it are in h5py's library and HDF5's under their own names (`lzf_compress` of liblzf, `H5_checksum_fletcher32`):
called from here they need no lock. Where they are not to be found, h5py packs as ever, and `Packer.threads` is 0.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

Quicker = Callable[[np.ndarray], bytes | None]
"""A chunk as lzf; None where it cannot be done the quicker way."""


class Packed(NamedTuple):
    data: bytes
    """With its checksum."""
    skipped: int
    """HDF5's filter mask: 1 where packing would have made it larger, and it is as it was."""


class Packer:
    """Packs up to `threads` chunks at a time."""

    def __init__(self, threads: int | None = None) -> None:
        found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = 0 if _lzf() is None or _fletcher32() is None else min(4, found) if threads is None else threads
        self._pool = ThreadPoolExecutor(self.threads) if self.threads else None

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def packed(self, chunks: Mapping[str, np.ndarray], quicker: Mapping[str, Quicker]) -> Future[dict[str, Packed]]:
        """The chunks of all columns for some rows. They must not change until it is done. `quicker`: columns that know
        what repeats in them."""
        assert self._pool is not None, "there are no threads"
        return self._pool.submit(
            lambda: {name: _packed(np.ascontiguousarray(one), quicker.get(name)) for name, one in chunks.items()}
        )


def _packed(chunk: np.ndarray, quicker: Quicker | None) -> Packed:
    pack, skipped = _lzf(), 0
    assert pack is not None
    data = quicker(chunk) if quicker is not None else None
    if data is None:
        room = _room(chunk.nbytes)
        size = pack(chunk.ctypes.data, chunk.nbytes, room.ctypes.data, chunk.nbytes - 1)
        data, skipped = (room[:size].tobytes(), 0) if size else (chunk.tobytes(), 1)
    return Packed(data + struct.pack("<I", _fletcher32()(data, len(data))), skipped)


def _room(size: int) -> np.ndarray:
    """Of this thread, and used again: new pages for every chunk cost as much as half of the packing."""
    if getattr(_OF_THREAD, "room", np.empty(0)).nbytes < size:
        _OF_THREAD.room = np.empty(size, np.uint8)
    return _OF_THREAD.room


_OF_THREAD = threading.local()


@cache
def _lzf() -> Any:
    """unsigned lzf_compress(const void *in, unsigned in_len, void *out, unsigned out_len); 0 where it does not fit."""
    try:
        pack = ctypes.CDLL(str(importlib.import_module("h5py.h5z").__file__)).lzf_compress
    except (ImportError, OSError, AttributeError):
        return None
    pack.restype = ctypes.c_uint
    pack.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint]
    return pack


@cache
def _fletcher32() -> Any:
    """uint32_t H5_checksum_fletcher32(const void *data, size_t len), what HDF5's filter of that name appends."""
    try:
        checksum = ctypes.CDLL(str(importlib.import_module("h5py.h5z").__file__)).H5_checksum_fletcher32
    except (ImportError, OSError, AttributeError):
        return None
    checksum.restype = ctypes.c_uint32
    checksum.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return checksum
