"""A text that is tokenised once, into a packed folder of the cache, for all runs that read it with one tokenizer.

The name of the folder is a digest of what its ids follow from: the tokenizer, and the files' names, sizes, formats and
content. A text that changed, or another tokenizer, has another folder; a copy of the text elsewhere has the same. The
folder may be removed at any time: the next run that needs it makes it again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from plimsoll.cache import cache_folder
from plimsoll.data.disk import locked
from plimsoll.data.packed.encoding import in_threads
from plimsoll.data.packed.packed import META, Packed, open_packed
from plimsoll.data.packed.prepare import METHOD, fill
from plimsoll.data.packed.writer import TextFolder
from plimsoll.data.same_data import WHOLE_BYTES, files_facts
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.errors import DataError

Say = Callable[[str], None]


def _folder(name: str) -> Path:
    return cache_folder() / "tokens" / name


def tokenised(documents: Documents, tokenizer: TextTokenizer, say: Say) -> Packed:
    """Returns the packed folder of a text, which is made unless the cache has it: by a thread for each core.

    Two processes make it once: the second waits for the first, and goes on where that was killed.

    Args:
        documents: Files on this machine (`documents.paths`), not a stream.
        tokenizer: The encoder.
        say: Receives a line before the work, its progress every few seconds, and a line after.

    Raises:
        DataError: The text changed while it was read.
        StoppedError: The disk of the cache is full.
    """
    made_with = _made_with(documents, tokenizer)
    name = _sha256(json.dumps(made_with, sort_keys=True))[:32]
    folder = _folder(name)
    if (packed := kept(name, say)) is not None:
        return packed
    folder.parent.mkdir(exist_ok=True)
    with locked(folder.with_name(f"{name}.made"), wait=lambda: say("tokens: another process makes them: waiting")):
        packed = kept(name, say)
        if packed is None:
            say(f"tokens: made once, for all runs with this text and tokenizer, in {folder}")
            try:
                _make(folder, made_with, documents, tokenizer, say)
            except DataError:  # the text changed, or is none: nothing that was written may be continued
                shutil.rmtree(folder, ignore_errors=True)
                raise
            packed = open_packed(folder)
            say(f"tokens: {packed.tokens:,} of {packed.documents:,} documents")
    return packed


def kept(name: str, say: Say) -> Packed | None:
    """Returns the tokenised text of this name from the cache; None where it is not there, or is damaged."""
    folder = _folder(name)
    if (folder / META).is_file():
        try:
            return open_packed(folder)
        except DataError as problem:
            say(f"tokens: those in the cache are damaged and made again ({problem})")
            (folder / META).unlink(missing_ok=True)
    return None


def _make(folder: Path, made_with: Mapping[str, Any], documents: Documents, tokenizer: TextTokenizer, say: Say) -> None:
    with ExitStack() as stack:
        try:
            writer = _begun(folder, made_with, tokenizer, stack)
        except DataError as problem:
            say(f"tokens: what a process left that was stopped cannot be continued, and is made again ({problem})")
            stack.close()
            shutil.rmtree(folder, ignore_errors=True)
            writer = _begun(folder, made_with, tokenizer, stack)
        encoder = stack.enter_context(in_threads(tokenizer, workers=None))
        fill(writer, documents, encoder, lambda share, words: say(f"tokens: {words}, {share or 0:.0%}"))
        if _made_with(documents, tokenizer) != made_with:
            raise DataError(
                f"{documents.name} changed while it was tokenised: its files have other text, names or sizes than"
                " before. Run the same command again when nothing writes there"
            )
        writer.finish(source=f"{documents.name}: {documents.describe()}")


def _begun(folder: Path, made_with: Mapping[str, Any], tokenizer: TextTokenizer, stack: ExitStack) -> TextFolder:
    writer = stack.enter_context(TextFolder(folder, made_with))
    writer.begin(tokenizer)
    return writer


def _made_with(documents: Documents, tokenizer: TextTokenizer) -> Mapping[str, Any]:
    """Returns what the ids follow from. Of a text too large to be read whole, the files' times of writing, too."""
    assert documents.paths is not None
    facts = files_facts(documents.paths)
    written = [path.stat().st_mtime_ns for path in documents.paths] if facts["bytes"] > WHOLE_BYTES else []
    return {
        "method": METHOD,
        "tokenizer": _sha256(tokenizer.to_json()),
        "end_of_text": tokenizer.end_of_text,
        "names": documents.digest,
        "formats": sorted({f"{file.format} {file.column}" for file in documents.files if isinstance(file, File)}),
        "text": facts,
        "written": _sha256(repr(written)),
        "max_examples": documents.max_examples,
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
