"""Tokenises a text once, into a folder of token ids in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plimsoll.data.kept import MADE_ONCE, made_once, require_room
from plimsoll.data.packed.encoding import in_threads
from plimsoll.data.packed.packed import Packed, open_packed
from plimsoll.data.packed.prepare import counts_of, pack, tokens_of
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.opening import expected_bytes
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.files.folder import Say


def tokenised(documents: Documents, tokenizer: TextTokenizer, say: Say) -> Packed:
    """Returns the packed folder of a text: from the cache, or newly made with a thread for each core.

    Args:
        documents: Text in files on this machine, not a stream.
        tokenizer: Tokenizer that encodes the text.
        say: Receives progress messages.

    Raises:
        DataError: The text changed while it was read.
        NotKept: The cache cannot store the folder. Nothing of it is left there.
    """
    made_with = tokens_of(documents, tokenizer, exact=True)

    def progress(share: float | None, words: str) -> None:
        say(f"tokens: {words}, {share or 0:.0%}")

    def make(folder: Path) -> dict[str, Any]:
        require_room(folder, documents.name, expected_bytes(documents, tokenizer))
        say(MADE_ONCE.format(folder=folder.with_suffix("")))
        packing = pack(folder, documents, tokenizer, made_with, in_threads(tokenizer, workers=None), progress)
        say(f"tokens: {packing.words}")
        return counts_of(packing, tokenizer)

    return made_once(made_with, make, open_packed, continues=True, say=say)
