"""Protocol buffers without their schemas: a message as its numbered fields, one level at a time.

XLA describes what it compiled in messages whose schemas (xla/service/hlo.proto, xla/xla_data.proto) are published in
Python with TensorFlow only. The format itself is small: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Message = Mapping[int, list[Any]]
"""Field number to its values in order: int for a varint, memoryview for everything else."""


def parsed(serialized: bytes | memoryview) -> Message:
    """One level; nested messages stay bytes. Raises ValueError for what is no message."""
    view, at, found = memoryview(serialized), 0, {}
    while at < len(view):
        key, at = _varint(view, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(view, at)
        elif kind in (1, 2, 5):
            length, at = _varint(view, at) if kind == 2 else (8 if kind == 1 else 4, at)
            value, at = view[at : at + length], at + length
        else:
            raise ValueError(f"a protocol buffer with wire type {kind} at byte {at}")
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def number(message: Message, field: int) -> int:
    """The last value, as the format asks; absent is 0."""
    values = message.get(field)
    return values[-1] if values else 0


def numbers(message: Message, field: int) -> list[int]:
    """A repeated number, packed or not."""
    found: list[int] = []
    for value in message.get(field, ()):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            found.append(one)
    return found


def text(message: Message, field: int) -> str:
    values = message.get(field)
    return bytes(values[-1]).decode() if values else ""
