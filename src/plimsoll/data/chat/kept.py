"""Examples encoded once, into a folder of the cache, for all runs with the same records, tokenizer and options.

As `packed.kept` keeps tokenised text: the folder's name is a digest of what it follows from, it gets that name when it
is whole, and it may be removed at any time. What was interrupted is begun anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data import cores
from plimsoll.data.chat.encoded import FILES, FORMAT, META, NEVER, PARTS, TRAIN, VALIDATION, Encoded, open_kept
from plimsoll.data.chat.examples import LossOn, read_example
from plimsoll.data.chat.records import Records
from plimsoll.data.chat.tokenizer import ChatTokenizer, Example
from plimsoll.data.disk import free_bytes
from plimsoll.data.packed.kept import (
    ADVICE,
    MADE_ONCE,
    NotKept,
    Say,
    made_once,
    name_of,
)
from plimsoll.data.packed.writer import LEAST_FREE
from plimsoll.data.text.documents import HELD_OUT_SHARE
from plimsoll.data.unchanged import note_unchanged
from plimsoll.errors import DataError
from plimsoll.units import KIB, format_bytes

METHOD = 2
"""Version of reading, rendering, holding out and encoding."""
BLOCK = 256 * KIB
"""Characters that end a block, with the example that reaches them."""
SAY_SECONDS = 2.0

Block = list[tuple[Example, bool]]
"""Examples, and whether each is held out."""


def encoded_examples(
    records: Records, tokenizer: ChatTokenizer, *, loss_on: LossOn = "assistant", hold_out: bool = True, say: Say
) -> Encoded:
    """Returns the folder of encoded examples, which is made unless the cache has it.

    Args:
        records: From `open_records`.
        tokenizer: From `load_chat_tokenizer`. Where its template reads the clock, give it the time at which the run
            began: another day is another folder.
        loss_on: "assistant" to learn what the assistant writes, and completions; "all" for all tokens. All of a `text`
            is learned either way.
        hold_out: Whether 1 in 100 records, chosen by their content, is for validation.
        say: Receives lines of progress.

    Raises:
        DataError: A record is refused, the files changed meanwhile, or there is nothing to learn in them.
        NotKept: The cache cannot take the folder.
    """
    made_with = _made_with(records, tokenizer, loss_on, hold_out)

    def make(part: Path) -> None:
        shutil.rmtree(part, ignore_errors=True)
        say(MADE_ONCE.format(folder=part.with_suffix("")))
        try:
            part.mkdir()
            _make(part, records, tokenizer, made_with, say)
            if _made_with(records, tokenizer, loss_on, hold_out) != made_with:
                raise DataError(
                    f"{records.name} changed while it was read. Run the same command again when nothing writes there"
                )
        except OSError as problem:  # it may be the records' disk, too: their readers raise DataError
            shutil.rmtree(part, ignore_errors=True)
            raise NotKept(
                f"{part.parent} cannot take the ids of {records.name}: {problem.strerror}. {ADVICE}"
            ) from None
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    return made_once(name_of(made_with), opened=open_kept, make=make, say=say, words=_words)


def name_of_examples(
    records: Records, tokenizer: ChatTokenizer, *, loss_on: LossOn = "assistant", hold_out: bool = True
) -> str:
    """Returns the name of the folder of `encoded_examples`, a digest of what its content follows from."""
    return name_of(_made_with(records, tokenizer, loss_on, hold_out))


def _words(encoded: Encoded) -> str:
    train, empty = encoded.train, f"; {encoded.empty:,} records are empty" if encoded.empty else ""
    held_out = encoded.validation.count
    return f"{train.tokens:,} tokens of {train.count:,} documents, {held_out:,} more for validation{empty}"


def _made_with(records: Records, tokenizer: ChatTokenizer, loss_on: LossOn, hold_out: bool) -> dict[str, Any]:
    """Returns what the ids follow from."""
    return {
        "method": METHOD,
        "tokenizer": hashlib.sha256(json.dumps(tokenizer.identity()).encode()).hexdigest(),
        "day": None if tokenizer.template is None else tokenizer.template.day,
        "records": records.identity(),
        "max_examples": records.max_examples,
        "loss_on": loss_on,
        "held_out": HELD_OUT_SHARE if hold_out else 0,
    }


def _make(folder: Path, records: Records, tokenizer: ChatTokenizer, made_with: Mapping[str, Any], say: Say) -> None:
    loss_on, hold_out = made_with["loss_on"], bool(made_with["held_out"])
    kinds, empty, said, conversations = set[str](), 0, time.monotonic(), False

    def examples() -> Iterator[tuple[Example, bool]]:
        nonlocal empty, conversations
        for record in records:
            kinds.add(record.kind)
            read = read_example(record, tokenizer, loss_on)
            if read.example is None:
                empty += 1
            else:
                conversations |= read.example.whole
                yield read.example, hold_out and read.held_out

    with ExitStack() as stack:
        train, validation = (stack.enter_context(_Writer(folder, side, tokenizer)) for side in (TRAIN, VALIDATION))
        for block, results in _encoded(examples(), tokenizer):
            for (_, held_out), (ids, learned) in zip(block, results, strict=True):
                (validation if held_out else train).append(ids, learned)
            _require_room(folder, records)
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                say(f"tokens: {train.tokens:,} of {train.count:,} documents so far")
    _require_something(records, train, validation, empty)
    meta = {
        "format": FORMAT,
        "dtype": train.dtype.name,
        "vocab_size": tokenizer.size,
        "end_of_text": tokenizer.end_of_text,
        "kind": kinds.pop(),
        "conversations": conversations,
        "empty": empty,
        "source": records.describe(),
        **{side.side: {"tokens": side.tokens, "learned": side.learned} for side in (train, validation)},
        "made_with": made_with,
    }
    with open(folder / META, "w", encoding="utf-8") as file:
        json.dump(meta, file)
    note_unchanged(folder, (*FILES, META))


def _require_room(folder: Path, records: Records) -> None:
    if (free := free_bytes(folder)) < LEAST_FREE:
        raise NotKept(
            f"the ids of {records.name} fill the disk of {folder.parent}: {format_bytes(free)} are free, and"
            f" {format_bytes(LEAST_FREE)} stay free. {ADVICE}"
        )


def _require_something(records: Records, train: _Writer, validation: _Writer, empty: int) -> None:
    if train.learned_first:
        return
    held_out = f", {validation.count:,} more are held out for validation" if validation.count else ""
    raise DataError(
        f"{records.name} has nothing to learn: none of the {train.tokens:,} tokens of its {train.count:,} documents is"
        f" the assistant's or a completion's{held_out}, {empty:,} records are empty. Give records with a message of the"
        " role assistant, or learn all tokens with --loss-on all"
    )


def _encoded(
    examples: Iterator[tuple[Example, bool]], tokenizer: ChatTokenizer
) -> Iterator[tuple[Block, list[tuple[np.ndarray, np.ndarray]]]]:
    """Yields blocks with the ids of each of their examples, in order, encoded by a thread for each core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parallelism is ours: threads inside would be too many
    waiting: deque[tuple[Block, Future]] = deque()
    block, size = [], 0
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for example in chain(examples, [None]):
                if example is not None:
                    block.append(example)
                    size += len(example[0].text)
                if block and (example is None or size >= BLOCK):
                    waiting.append((block, pool.submit(tokenizer.encode, [example for example, _ in block])))
                    block, size = [], 0
                while len(waiting) > (cores() + 1 if example is not None else 0):
                    first, result = waiting.popleft()
                    yield first, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Writer:
    """The files of one side of the folder, as they grow."""

    def __init__(self, folder: Path, side: str, tokenizer: ChatTokenizer) -> None:
        self.folder, self.side = folder, side
        self.dtype = np.dtype(np.uint16 if tokenizer.size <= 2**16 else np.uint32)
        self._on_disk = self.dtype.newbyteorder("<")
        self.tokens = self.learned = 0
        self.learned_first = False
        """Whether any document has something to learn."""
        self._starts, self._first = array("q", [0]), array("i")

    @property
    def count(self) -> int:
        """Documents so far."""
        return len(self._first)

    def __enter__(self) -> _Writer:
        self._stack = ExitStack()
        self._ids, self._flags, self._starts_file, self._first_file = (
            self._stack.enter_context(open(self.folder / f"{self.side}.{name}", "wb"))  # noqa: SIM115  (the stack's)
            for name in PARTS
        )
        return self

    def append(self, ids: np.ndarray, learned: np.ndarray) -> None:
        """Writes a document; its first token, which nothing comes before, is none to learn."""
        learned[:1] = False
        self._ids.write(ids.astype(self._on_disk).data)
        self._flags.write(learned.astype(np.uint8).data)
        self.tokens, self.learned = self.tokens + len(ids), self.learned + int(learned.sum())
        first = int(learned.argmax()) if learned.any() else NEVER
        self.learned_first |= first != NEVER
        self._starts.append(self.tokens)
        self._first.append(first)

    def __exit__(self, *problem: Any) -> None:
        with self._stack:
            np.save(self._starts_file, np.array(self._starts))
            np.save(self._first_file, np.array(self._first))
            for file in (self._ids, self._flags, self._starts_file, self._first_file):
                file.flush()
                os.fsync(file.fileno())
