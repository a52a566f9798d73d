"""Data sets of the Hugging Face hub.

Rows are streamed: no complete copy is downloaded, and only a position is saved.

Importing `datasets` adds 136 MB of resident memory, so the import waits until the stream is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from plimsoll.data import in_short
from plimsoll.data.text.formats import no_column, record_parts, text_of
from plimsoll.data.text.pieces import Part
from plimsoll.errors import DataError, PlimsollError


def looks_like_hub_id(name: str) -> bool:
    """Returns True if a name has the form of an id, org/name."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name))


def quieten_retries() -> None:
    """Keeps `huggingface_hub` from printing two lines for each retried request. The last failure is raised.

    Does nothing if the user has set HF_HUB_VERBOSITY.
    """
    from huggingface_hub import logging

    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()


@dataclass(frozen=True, kw_only=True)
class HubStream:
    """One split of a data set that `datasets.load_dataset` can open: an id on the Hugging Face hub, or a folder."""

    name: str
    config: str | None
    split: str
    column: str

    def imports(self) -> tuple[str, ...]:
        """Returns the names of modules that reading imports. A plan counts their memory."""
        return ("datasets",)

    def size(self) -> None:
        """Returns None: the number of bytes is unknown."""

    def columns(self) -> list[str] | None:
        """Returns the columns of the stream."""
        return self.open().column_names

    def open(self) -> Any:
        """Opens the stream. Raises DataError if it cannot be streamed or lacks the text column, `column`."""
        stream = self._open()
        if stream.column_names and self.column not in stream.column_names:
            raise no_column(self._where, self.column, stream.column_names)
        return stream

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields all rows, with all columns."""
        with self._refusing():
            yield from self._open()

    def files(self) -> list[str]:
        """Returns the paths or addresses of this split's files in the order of `datasets`; empty if unknown."""
        import datasets

        quieten_retries()
        with self._refusing():
            files = datasets.load_dataset_builder(self.name, self.config).config.data_files
        return list(files.get(self.split, [])) if isinstance(files, dict) else []

    def count_rows(self) -> int | None:
        """Returns the number of rows that the data set's info states; None if it states none."""
        import datasets

        quieten_retries()
        with self._refusing():
            splits = datasets.load_dataset_builder(self.name, self.config).info.splits or {}
        return splits[self.split].num_examples if self.split in splits else None

    def read(self, at: dict) -> Iterator[Part]:
        """Yields the documents after the position `at`, in pieces. An empty `at` is the beginning of the stream."""
        stream = self.open()
        inside = at.get("inside", 0)
        before = at.get("state") or stream.state_dict()
        if at:
            stream.load_state_dict(before)
        with self._refusing():
            for row in stream:
                after = stream.state_dict()
                text = text_of(row, self.column, self._where)
                yield from record_parts(text, inside, {"state": before}, {"state": after})
                before = after
                inside = 0

    @property
    def _where(self) -> str:
        config = f", config {self.config!r}" if self.config else ""
        return f"split {self.split!r} of data set {self.name}{config}"

    def _open(self) -> Any:
        import datasets

        quieten_retries()
        with self._refusing():
            return datasets.load_dataset(self.name, self.config, split=self.split, streaming=True)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raises DataError instead of the dozen error classes of `datasets`, also in the middle of a stream."""
        try:
            yield
        except PlimsollError:
            raise
        except Exception as problem:
            raise DataError(
                f"{self._where} cannot be streamed ({in_short(problem, kind=True)}). Check the id, --dataset-config and"
                " --split, and that huggingface.co can be reached; or name a copy on this machine by its path."
            ) from problem
