"""Encodes examples once into a folder of the cache, for all runs with the same records, tokenizer and options."""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data import cores
from plimsoll.data.chat.encoded import NEVER, TRAIN, VALIDATION, Encoded, open_encoded
from plimsoll.data.chat.examples import LossOn, read_example
from plimsoll.data.chat.records import Records
from plimsoll.data.chat.tokenizer import ChatTokenizer, Example
from plimsoll.data.in_order import encoding_pool, in_blocks, in_order
from plimsoll.data.kept import MADE_ONCE, made_once, require_room
from plimsoll.data.packed.packed import id_type
from plimsoll.data.text.documents import HELD_OUT_SHARE
from plimsoll.errors import DataError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import Say
from plimsoll.units import KIB

METHOD = 3
"""Version of the rules for reading, rendering, holding out and encoding records."""
BLOCK = 256 * KIB
"""Minimum characters of a block of examples, which are encoded in one call."""
SAY_SECONDS = 2.0

Block = list[tuple[Example, bool]]
"""Pairs of an example and a boolean: True if it is held out for validation."""


def encoded_examples(
    records: Records, tokenizer: ChatTokenizer, *, loss_on: LossOn = "assistant", hold_out: bool = True, say: Say
) -> Encoded:
    """Returns the folder of encoded examples: from the cache, or newly made.

    Args:
        records: From `open_records`.
        tokenizer: From `load_chat_tokenizer`. If its template uses the date, load it with the day on which the run
            began: another day gives another folder.
        loss_on: Tokens that count in the loss: "assistant" for the assistant's messages and completions, "all" for
            all. All tokens of a record with `text` count either way.
        hold_out: Whether 1 in 100 records, chosen by a hash, is for validation.
        say: Receives lines of progress.

    Raises:
        DataError: A record is invalid, the files changed meanwhile, or no token counts in the loss.
        NotKept: The cache cannot store the folder.
    """
    made_with = examples_of(records, tokenizer, loss_on=loss_on, hold_out=hold_out)

    def make(folder: Path) -> dict[str, Any]:
        say(MADE_ONCE.format(folder=folder.with_suffix("")))
        counts = _make(folder, records, tokenizer, loss_on=loss_on, hold_out=hold_out, say=say)
        changes = made_with.difference(examples_of(records, tokenizer, loss_on=loss_on, hold_out=hold_out))
        if changes:
            raise DataError(
                f"{records.name} changed while it was read, {changes}. Run the same command again when nothing writes"
                " there"
            )
        return counts

    return made_once(made_with, make, open_encoded, say=say)


def examples_of(
    records: Records, tokenizer: ChatTokenizer, *, loss_on: LossOn = "assistant", hold_out: bool = True
) -> Facts:
    """Returns the facts that determine the encoded examples: hashes of files and tokenizer, and options."""
    identity = json.dumps(tokenizer.identity())
    return records.facts(
        method=METHOD,
        tokenizer_sha256=hashlib.sha256(identity.encode()).hexdigest(),
        day=None if tokenizer.template is None else tokenizer.template.day,
        max_examples=records.max_examples,
        loss_on=loss_on,
        held_out=HELD_OUT_SHARE if hold_out else 0,
    )


def _make(
    folder: Path, records: Records, tokenizer: ChatTokenizer, *, loss_on: LossOn, hold_out: bool, say: Say
) -> dict[str, Any]:
    """Encodes all records into `folder`, and returns the entries of its meta.json."""
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

    with ExitStack() as files, encoding_pool(cores()) as pool:
        train = _Writer(folder, TRAIN, tokenizer, files)
        validation = _Writer(folder, VALIDATION, tokenizer, files)

        def submit(block: Block) -> Callable[[], list[tuple[np.ndarray, np.ndarray]]]:
            return pool.submit(tokenizer.encode, [example for example, _ in block]).result

        blocks = in_blocks(examples(), lambda item: len(item[0].text), BLOCK)
        for block, results in in_order(blocks, submit, cores() + 1):
            for (_, held_out), (ids, learned) in zip(block, results, strict=True):
                (validation if held_out else train).append(ids, learned)
            require_room(folder, records.name, 0)
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                say(f"tokens: {train.tokens:,} of {train.count:,} documents so far")
    _require_something(records, train, validation, empty)
    held_out = f"{validation.count:,} more for validation"
    say(f"tokens: {train.tokens:,} tokens of {train.count:,} documents, {held_out}; {empty:,} records are empty")
    return {
        "dtype": train.dtype.name,
        "vocab_size": tokenizer.size,
        "end_of_text": tokenizer.end_of_text,
        "kind": kinds.pop(),
        "conversations": conversations,
        "empty": empty,
        "source": records.describe(),
        "day": None if tokenizer.template is None else tokenizer.template.day,
        TRAIN: train.finish(),
        VALIDATION: validation.finish(),
    }


def _require_something(records: Records, train: _Writer, validation: _Writer, empty: int) -> None:
    if train.learned_first:
        return
    held_out = f", {validation.count:,} more are held out for validation" if validation.count else ""
    raise DataError(
        f"{records.name} has nothing to learn: none of the {train.tokens:,} tokens of its {train.count:,} documents is"
        f" the assistant's or a completion's{held_out}, {empty:,} records are empty. Give records with a message of the"
        " role assistant, or learn all tokens with --loss-on all"
    )


class _Writer:
    """Writes the files of one split, training or validation."""

    def __init__(self, folder: Path, side: str, tokenizer: ChatTokenizer, files: ExitStack) -> None:
        self.dtype = id_type(tokenizer.size)
        self.tokens = 0
        self.learned = 0
        self.learned_first = False
        """True if any document has a token that counts in the loss."""
        self._path = folder / side
        self._ids = files.enter_context(open(f"{self._path}.tokens.bin", "wb"))  # noqa: SIM115  (the stack closes it)
        self._flags = files.enter_context(open(f"{self._path}.learned.bin", "wb"))  # noqa: SIM115  (likewise)
        self._starts = array("q", [0])
        self._first = array("i")

    @property
    def count(self) -> int:
        """Number of documents so far."""
        return len(self._first)

    def append(self, ids: np.ndarray, learned: np.ndarray) -> None:
        """Writes a document. Its first token never counts in the loss, since no token precedes it."""
        learned[:1] = False
        self._ids.write(ids.astype(self.dtype).data)
        self._flags.write(learned.astype(np.uint8).data)
        self.tokens += len(ids)
        self.learned += int(learned.sum())
        first = int(learned.argmax()) if learned.any() else NEVER
        self.learned_first |= first != NEVER
        self._starts.append(self.tokens)
        self._first.append(first)

    def finish(self) -> dict[str, int]:
        """Writes the arrays `starts` and `first`. Returns the number of tokens, and of those that count in the loss."""
        np.save(f"{self._path}.starts.npy", np.array(self._starts))
        np.save(f"{self._path}.first.npy", np.array(self._first))
        return {"tokens": self.tokens, "learned": self.learned}
