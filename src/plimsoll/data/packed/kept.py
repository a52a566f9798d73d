"""A text that is tokenised once, into a packed folder of the cache, for all runs that read it with one tokenizer.

The name of the folder is a digest of what its ids follow from: the tokenizer, and the files' names, sizes, formats and
content. A text that changed, or another tokenizer, has another folder; a copy of the text elsewhere has the same. It
gets that name when it is whole, and is `.part` before. It may be removed at any time: the next run that needs it makes
it again.

Files that are not as they were written (`data/unchanged.py`) are made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from plimsoll import cache
from plimsoll.data.disk import free_bytes, locked
from plimsoll.data.packed.encoding import in_threads
from plimsoll.data.packed.packed import DOCUMENTS, META, TOKENS, VALIDATION, Packed, open_packed
from plimsoll.data.packed.prepare import METHOD, expected_bytes, fill
from plimsoll.data.packed.writer import LEAST_FREE, TextFolder
from plimsoll.data.same_data import WHOLE_BYTES, files_facts
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.data.unchanged import Kept, note_unchanged, opened
from plimsoll.errors import DataError, PlimsollError, StoppedError
from plimsoll.units import format_bytes

Say = Callable[[str], None]
MADE_ONCE = "tokens: made once, for all runs with this text and tokenizer, in {folder}"
"""Line that is said before the work, once there is room for it."""
ADVICE = "`plimsoll doctor` shows what the cache holds, and PLIMSOLL_CACHE names another folder"


class NotKept(PlimsollError):
    """The cache cannot take the text: its folder is not to be written to, its disk is full, or its limit too low."""


def tokenised(documents: Documents, tokenizer: TextTokenizer, say: Say) -> Packed:
    """Returns the packed folder of a text, which is made unless the cache has it: by a thread for each core.

    Two processes make it once: the second waits for the first, and goes on where that was killed.

    Args:
        documents: Files on this machine (`documents.paths`), not a stream.
        tokenizer: The encoder.
        say: Receives a line before the work, its progress every few seconds, and a line after.

    Raises:
        DataError: The text changed while it was read.
        NotKept: The cache cannot take it. Nothing of it is left there.
    """
    made_with = _made_with(documents, tokenizer)
    name = name_of(made_with)

    def make(part: Path) -> None:
        if not part.exists():
            _require_room(part, documents, tokenizer)
        say(MADE_ONCE.format(folder=part.with_suffix("")))
        _make_or_nothing(part, made_with, documents, tokenizer, say)

    return made_once(
        name,
        opened=_opened,
        make=make,
        say=say,
        words=lambda packed: f"{packed.tokens:,} tokens of {packed.documents:,} documents",
    )


def name_of(made_with: Mapping[str, Any]) -> str:
    """Returns the name of the folder for what its ids follow from."""
    return _sha256(json.dumps(made_with, sort_keys=True))[:32]


def made_once(
    name: str,
    *,
    opened: Callable[[Path], Kept | None],
    make: Callable[[Path], None],
    say: Say,
    words: Callable[[Kept], str],
) -> Kept:
    """Returns a folder of the cache's tokens, which is made unless it is there; of two processes the second waits.

    Args:
        name: Of the folder.
        opened: Opens the folder, and notes its use; returns None if there is none, raises DataError for a damaged one.
        make: Makes the folder at a path beside it, where an interrupted one may be left.
        say: Receives a line where another process makes it, one of damage, and one after it was made.
        words: Describes what was made.

    Raises:
        NotKept: The cache cannot take it.
    """
    limit = cache.limit_bytes()
    try:
        home = cache.cache_folder()
    except PlimsollError as problem:
        raise NotKept(str(problem)) from None
    folder = home / "tokens" / name
    with suppress(DataError, OSError):  # it may be removed meanwhile
        if (there := opened(folder)) is not None:
            return there
    try:
        folder.parent.mkdir(exist_ok=True)
        lock = locked(folder.with_name(f"{name}.made"), wait=lambda: say("tokens: another process makes them: waiting"))
    except OSError as problem:
        raise NotKept(f"the cache folder {home} cannot be written to: {problem.strerror}. {ADVICE}") from None
    with lock:
        try:
            there = opened(folder)
        except DataError as problem:
            say(f"tokens: those in the cache are damaged and made again ({problem})")
            there = None
        if there is None:
            shutil.rmtree(folder, ignore_errors=True)  # an earlier version kept unfinished ones here, too
            part = folder.with_name(f"{name}.part")
            make(part)
            part.rename(folder)
            there = opened(folder)
            assert there is not None
            say(f"tokens: {words(there)}")
    cache.prune(home, limit)
    return there


def kept(name: str) -> Packed | None:
    """Returns the tokenised text of this name from the cache; None where it is not there, or is damaged."""
    with suppress(DataError, OSError):  # it may be removed meanwhile
        return _opened(cache.cache_folder() / "tokens" / name)
    return None


def _opened(folder: Path) -> Packed | None:
    """Returns a tokenised text, and notes its use; None if there is none. Raises DataError if it is damaged."""
    return opened(folder, META, open_packed)


def _require_room(folder: Path, documents: Documents, tokenizer: TextTokenizer) -> None:
    """Raises NotKept where neither the disk nor the limit of the cache has room for the text."""
    expected, limit = expected_bytes(documents, tokenizer) or 0, cache.limit_bytes()
    free = free_bytes(folder)
    if expected > min(free - LEAST_FREE, limit):
        room = f"the cache may have {format_bytes(limit)} ({cache.LIMIT})"
        if free - LEAST_FREE < limit:
            room = f"{format_bytes(free)} are free at {folder.parent}, of which {format_bytes(LEAST_FREE)} stay free"
        raise NotKept(f"{documents.name} takes about {format_bytes(expected)} of ids, and {room}. {ADVICE}")


def _make_or_nothing(
    folder: Path, made_with: Mapping[str, Any], documents: Documents, tokenizer: TextTokenizer, say: Say
) -> None:
    """Makes a text. Only what was interrupted is left to be continued, not what failed."""
    try:
        _make(folder, made_with, documents, tokenizer, say)
    except DataError:  # the text changed, or is none
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except (StoppedError, OSError) as problem:  # it is read another way, and whoever filled the disk needs it
        shutil.rmtree(folder, ignore_errors=True)
        why = problem.strerror if isinstance(problem, OSError) else "the disk is full"
        raise NotKept(f"{folder.parent} has no room for the ids of {documents.name}: {why}. {ADVICE}") from None


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
        note_unchanged(folder, (TOKENS, VALIDATION, DOCUMENTS))


def _begun(folder: Path, made_with: Mapping[str, Any], tokenizer: TextTokenizer, stack: ExitStack) -> TextFolder:
    writer = stack.enter_context(TextFolder(folder, made_with))
    writer.begin(tokenizer)
    return writer


def _made_with(documents: Documents, tokenizer: TextTokenizer) -> Mapping[str, Any]:
    """Returns what the ids follow from."""
    assert documents.paths is not None
    return {
        "method": METHOD,
        "tokenizer": _sha256(tokenizer.to_json()),
        "end_of_text": tokenizer.end_of_text,
        "names": documents.digest,
        "formats": sorted({f"{file.format} {file.column}" for file in documents.files if isinstance(file, File)}),
        **contents(documents.paths),
        "max_examples": documents.max_examples,
    }


def contents(paths: Sequence[Path]) -> dict[str, Any]:
    """Returns facts of what the files hold; if they are too large to be read whole, their times of writing too."""
    facts = files_facts(paths)
    written = [path.stat().st_mtime_ns for path in paths] if facts["bytes"] > WHOLE_BYTES else []
    return {"text": facts, "written": _sha256(repr(written))}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
