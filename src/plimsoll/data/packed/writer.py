"""A packed folder (see packed.py) as it is written, continued exactly where it was marked.

The files only grow. `mark` writes their lengths, and the position in the documents after which they end, into
progress.json, after what they hold has reached the disk; a process that continues cuts off what came later. meta.json
is written last. One process at a time: a lock beside the folder says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from plimsoll.data.disk import free_bytes, other_options, writing
from plimsoll.data.packed.packed import DOCUMENTS, FORMAT, META, TOKENIZER, TOKENS, VALIDATION, WIDEST
from plimsoll.data.text.documents import Piece
from plimsoll.data.text.tokenizer import TextTokenizer, load_tokenizer
from plimsoll.errors import DataError, StoppedError
from plimsoll.units import MIB, format_bytes

PROGRESS, CONFIG = "progress.json", "tokenizer_config.json"
"""How far the folder is good; and which token ends a text, where `transformers` looks for it."""
OURS = {META, TOKENS, VALIDATION, DOCUMENTS, TOKENIZER, PROGRESS, CONFIG}
LEAST_FREE = 16 * MIB
"""Bytes of the disk that stay free."""
_HEADER = 128
"""Bytes before the numbers of a one-dimensional .npy file: NumPy leaves room in it for any length."""


@dataclass(kw_only=True)
class Counts:
    """Sums over what was appended: a document that is not at its end counts, too."""

    tokens: int = 0
    validation_tokens: int = 0
    documents: int = 0
    validation_documents: int = 0
    characters: int = 0


class TextFolder:
    """A folder on its way. `made_with` is what its content follows from: with anything else it is not continued."""

    def __init__(self, out: Path, made_with: Mapping[str, Any]) -> None:
        self.out, self.made_with = out, json.loads(json.dumps(dict(made_with)))
        self.counts = Counts()
        self.position: dict | None = None
        """Position in the documents after the last piece that was appended; None for their beginning."""
        self.seconds = 0.0
        """Seconds that earlier processes took."""

    def __enter__(self) -> TextFolder:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            self._files = stack.enter_context(writing(self.out, self._full))
            self._progress = self._continued() if self.out.exists() else None
            self.out.mkdir(exist_ok=True)
            self.kept_tokenizer = load_tokenizer(self.out) if self._progress is not None else None
            """The tokenizer of a folder that is continued; None for a new one."""
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._stack.__exit__(*problem)

    def begin(self, tokenizer: TextTokenizer) -> None:
        """Opens the files: new ones, or what is good of those that are there."""
        self._tokenizer = tokenizer
        self.dtype = next(name for name, most in WIDEST.items() if tokenizer.size <= most)
        self._on_disk = np.dtype(self.dtype).newbyteorder("<")
        if self._progress is None:
            for name in OURS:
                (self.out / name).unlink(missing_ok=True)  # of a process that was killed before its first mark
            tokenizer.save(self.out / TOKENIZER)
            (self.out / CONFIG).write_text(json.dumps({"eos_token": tokenizer.end_of_text_token}), "utf-8")
        self._sha256 = hashlib.sha256((self.out / TOKENIZER).read_bytes()).hexdigest()
        itemsize = self._on_disk.itemsize
        self._tokens = self._opened(TOKENS, self.counts.tokens * itemsize)
        self._validation = self._opened(VALIDATION, self.counts.validation_tokens * itemsize)
        self._starts = self._opened(DOCUMENTS, _HEADER + self.counts.documents * 8)
        if self._progress is None:
            self._write_header()
            self.mark()

    def append(self, pieces: Sequence[Piece], ids: np.ndarray, lengths: np.ndarray) -> None:
        """Writes the next pieces; `ids` of all of them, `lengths` how many each has."""
        if free_bytes(self.out / TOKENS) < LEAST_FREE + 2 * ids.nbytes:
            self.mark()
            raise StoppedError(self._full())
        held_out = np.array([piece.held_out for piece in pieces])
        inside = self.position is not None and self.position["held_out"] is not None
        begins = np.array([not inside, *(piece.last for piece in pieces[:-1])])
        before = self.counts.tokens + np.cumsum(np.where(held_out, 0, lengths)) - np.where(held_out, 0, lengths)
        self._starts.write(before[begins & ~held_out].astype("<i8").data)
        of_held_out = np.repeat(held_out, lengths)
        for file, part in ((self._tokens, ids[~of_held_out]), (self._validation, ids[of_held_out])):
            file.write(part.astype(self._on_disk).data)
        self.counts.tokens += int(lengths[~held_out].sum())
        self.counts.validation_tokens += int(lengths[held_out].sum())
        self.counts.documents += int((begins & ~held_out).sum())
        self.counts.validation_documents += int((begins & held_out).sum())
        self.counts.characters += sum(len(piece.text) for piece in pieces)
        self.position = pieces[-1].position

    def mark(self, *, seconds: float = 0.0) -> None:
        """Records how far the folder is good: what was appended so far survives a kill."""
        for file in (self._tokens, self._validation, self._starts):
            file.flush()
            os.fsync(file.fileno())
        progress = {"made_with": self.made_with, "position": self.position, "seconds": self.seconds + seconds}
        self._write(PROGRESS, progress | {"counts": asdict(self.counts)})

    def finish(self, *, source: str) -> None:
        """Writes meta.json: the folder is whole. DataError where there is no document to train on."""
        if not self.counts.tokens:
            raise DataError(
                f"{source}: none of its {self.counts.validation_documents:,} documents is left to train on, all are"
                " held out for validation. Name a larger data set"
            )
        self._write_header()
        self._starts.seek(0, os.SEEK_END)
        self.mark()
        self._files.close()
        meta = {
            "format": FORMAT,
            "dtype": self.dtype,
            "vocab_size": self._tokenizer.size,
            "end_of_text": self._tokenizer.end_of_text,
            **asdict(self.counts),
            "source": source,
            "tokenizer_sha256": self._sha256,
            "made_with": self.made_with,
        }
        self._write(META, meta)
        (self.out / PROGRESS).unlink()

    def _full(self) -> str:
        return (
            f"the disk is full ({format_bytes(free_bytes(self.out))} free at {self.out.parent}):"
            f" {self.counts.tokens:,} tokens of {self.counts.documents:,} documents are in {self.out}. Make room, and"
            " run the same command again to continue"
        )

    def _continued(self) -> dict[str, Any] | None:
        """Returns what was marked last; None for a folder without a mark that holds nothing that is not ours."""
        names = set(os.listdir(self.out)) if self.out.is_dir() else {"no folder, but a file"}
        others = sorted(names - OURS - {f"{name}.new" for name in OURS})
        if others or META in names:
            what = f"holds {', '.join(others[:3])}" if others else "is finished"
            raise DataError(f"{self.out} is there already, and {what}: name another --out, or remove it")
        if PROGRESS not in names:
            return None
        try:
            progress = json.loads((self.out / PROGRESS).read_text("utf-8"))
            then, self.counts = dict(progress["made_with"]), Counts(**progress["counts"])
            self.position, self.seconds = progress["position"], float(progress["seconds"])
        except (ValueError, KeyError, TypeError) as problem:
            raise DataError(
                f"{self.out / PROGRESS} is damaged ({type(problem).__name__}: {problem}), and the folder cannot be"
                f" continued: remove {self.out}, and begin anew"
            ) from None
        require_same(self.out, then, self.made_with)
        return progress

    def _opened(self, name: str, good: int) -> IO[bytes]:
        """Opens a new file, or an old one whose first `good` bytes were marked."""
        path = self.out / name
        if self._progress is None:
            return self._files.enter_context(open(path, "wb"))
        if not path.is_file() or path.stat().st_size < good:
            raise DataError(
                f"{path} is shorter than the {good:,} bytes that {PROGRESS} knows of: it cannot be continued. Remove"
                f" {self.out}, and begin anew"
            )
        os.truncate(path, good)
        file = open(path, "r+b")  # noqa: SIM115  (its end is sought first; the stack closes it)
        self._files.push(file)
        file.seek(0, os.SEEK_END)
        return file

    def _write_header(self) -> None:
        self._starts.seek(0)
        header = {"descr": "<i8", "fortran_order": False, "shape": (self.counts.documents,)}
        np.lib.format.write_array_header_1_0(self._starts, header)
        assert self._starts.tell() == _HEADER

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        """Replaces a JSON file: it is whole, or as it was before."""
        new = self.out / f"{name}.new"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.out / name)


def require_same(out: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises DataError where a folder was made with other options."""
    if words := other_options(then, now):
        raise DataError(
            f"{out} was begun with other options, {words}: use the same ones to continue it, name another --out, or"
            " remove it"
        )
