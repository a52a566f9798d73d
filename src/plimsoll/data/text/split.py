"""Decides which documents are for validation: 1 % of them, chosen by their content and so the same in every run.

The order of the files, the number of epochs and the batch size do not matter, and two copies of a document are on the
same side. A document longer than a piece (64 KiB) is decided by its first piece, all of it alike."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


HELD_OUT_SHARE = 0.01


def is_held_out(text: str) -> bool:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64
