"""Chunks compressed as LZF and given their checksum without h5py's lock, so that several threads can do it.

h5py compresses one chunk after the other with its lock held, and that is most of the time of writing. The functions
that do it are exported by h5py's and HDF5's libraries (`lzf_compress` of liblzf, `H5_checksum_fletcher32`); called from
here they need no lock. Where the libraries do not export them, h5py compresses, and `threads` is 0.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from plimsoll.data import cores

Encode = Callable[[np.ndarray], bytes | None]
"""A chunk as LZF, by an encoder that knows its content; None where the chunk is not as it expects."""
MOST_THREADS = 4
_OF_THREAD = threading.local()


def threads() -> int:
    """Returns how many threads may compress at the same time; 0 where the libraries do not export what it takes."""
    if library("lzf_compress") is None or library("H5_checksum_fletcher32") is None:
        return 0
    return min(MOST_THREADS, cores())


def compressed(chunk: np.ndarray, encode: Encode | None) -> tuple[bytes, int]:
    """Returns a chunk as `write_direct_chunk` takes it: LZF with its checksum, and HDF5's filter mask.

    The mask is 1 where LZF would have made the chunk larger, and it is stored as it was.
    """
    chunk, mask = np.ascontiguousarray(chunk), 0
    data = encode(chunk) if encode is not None else None
    if data is None:
        # Kept for the next chunk of this thread: new pages for every chunk cost half as much as compressing it.
        if getattr(_OF_THREAD, "room", np.empty(0)).nbytes < chunk.nbytes:
            _OF_THREAD.room = np.empty(chunk.nbytes, np.uint8)
        room = _OF_THREAD.room
        size = library("lzf_compress")(chunk.ctypes.data, chunk.nbytes, room.ctypes.data, chunk.nbytes - 1)
        data, mask = (room[:size].tobytes(), 0) if size else (chunk.tobytes(), 1)
    return data + struct.pack("<I", library("H5_checksum_fletcher32")(data, len(data))), mask


@cache
def library(name: str) -> Any:
    """Returns a function of h5py's or HDF5's libraries by its C name; None where they do not export it."""
    signatures = {
        # unsigned lzf_compress(const void *in, unsigned in_len, void *out, unsigned out_len); 0 if it does not fit
        "lzf_compress": (ctypes.c_uint, [ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint]),
        # uint32_t H5_checksum_fletcher32(const void *data, size_t len), what HDF5's filter of that name appends
        "H5_checksum_fletcher32": (ctypes.c_uint32, [ctypes.c_char_p, ctypes.c_size_t]),
        # herr_t H5Pset(hid_t plist_id, const char *name, const void *value)
        "H5Pset": (ctypes.c_int, [ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p]),
        # herr_t H5Fincrement_filesize(hid_t file_id, hsize_t increment)
        "H5Fincrement_filesize": (ctypes.c_int, [ctypes.c_int64, ctypes.c_uint64]),
    }
    try:
        function = getattr(ctypes.CDLL(str(importlib.import_module("h5py.h5z").__file__)), name)
    except (ImportError, OSError, AttributeError):
        return None
    function.restype, function.argtypes = signatures[name]
    return function
