"""Chunks packed with lzf in threads of our own.

h5py packs a chunk with its lock held, one after the other, and that is most of the time of writing. The function that
does it is in h5py's library under its own name (`lzf_compress` of liblzf): called from here it needs no lock. Where it
is not to be found, chunks are packed by h5py as ever, and `Packer.threads` is 0.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np


class Packed(NamedTuple):
    data: bytes
    skipped: int
    """HDF5's filter mask: 1 where packing would have made it larger, and it is as it was."""


class Packer:
    """Packs up to `threads` chunks at a time."""

    def __init__(self, threads: int | None = None) -> None:
        found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = 0 if _lzf() is None else min(4, found) if threads is None else threads
        self._pool = ThreadPoolExecutor(self.threads) if self.threads else None

    def __enter__(self) -> Packer:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def packed(self, chunks: Mapping[str, np.ndarray]) -> Future[dict[str, Packed]]:
        """The chunks of all columns for some rows. They must not change until it is done."""
        assert self._pool is not None, "there are no threads"
        return self._pool.submit(lambda: {name: _packed(np.ascontiguousarray(one)) for name, one in chunks.items()})


def _packed(chunk: np.ndarray) -> Packed:
    pack = _lzf()
    assert pack is not None
    room = _room(chunk.nbytes)
    size = pack(chunk.ctypes.data, chunk.nbytes, room.ctypes.data, chunk.nbytes - 1)
    return Packed(room[:size].tobytes(), 0) if size else Packed(chunk.tobytes(), 1)


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
