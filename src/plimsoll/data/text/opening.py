"""Opens the text that a user names: a file, a folder, or the id of a data set on the Hugging Face hub."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.data import STANDARD_LIBRARY, TALES
from plimsoll.data.hub import HubStream, looks_like_hub_id
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import KNOWN, File, format_of
from plimsoll.data.text.pieces import how_to_split
from plimsoll.data.text.streams import COMPRESSED, PACKED_TO, open_bytes
from plimsoll.data.text.tales import tales_file
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from plimsoll.data.text.tokenizer import TextTokenizer

_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_OTHER_SUFFIXES = {".json", ".csv", ".tsv"}
"""Suffixes of files that are not read as text here. A name with one of them is no id on the hub."""
_OTHER_SPLIT = re.compile(r"(^|[-_. ])(test|validation|valid|val|dev|eval)([-_. ]|$)", re.IGNORECASE)

FILES_OF_A_RUN = ("recipe.json", "plan.json")
LARGEST_BYTES = 4 * GIB
"""Largest text, in bytes, that is tokenised before training. Larger ones are streamed. Encoding 4 GiB takes ten minutes
on two cores, and 2 GiB of disk."""
BYTES_A_TOKEN = 4
"""Approximate bytes of text per token: 3.3 for Python's source with 4,096 tokens, 4.4 for English with 50,257."""


def open_documents(
    dataset_id: str,
    *,
    config: str | None = None,
    split: str = "train",
    text_column: str = "text",
    max_examples: int | None = None,
) -> Documents:
    """Opens the documents that `dataset_id` names, without reading them into memory.

    An existing path is a file or folder; otherwise `org/name` is an id on the Hugging Face hub. The `datasets` library
    reads a folder if file names tell splits, its data-set card has configurations, it has only .json, .csv or .tsv
    files, or `config` or another `split` than "train" is given. Of other folders, all readable files are read, sorted
    by name.
    """
    if max_examples is not None and max_examples < 1:
        raise RecipeError(f"--max-examples must be 1 or more documents, got {max_examples}")
    if dataset_id == STANDARD_LIBRARY:
        return python_sources(max_examples=max_examples)
    if dataset_id == TALES:
        dataset_id = str(tales_file())
    files = named_files(dataset_id, config=config, split=split, column=text_column)
    if files is None:
        stream = HubStream(name=dataset_id, config=config, split=split, column=text_column)
        return _streamed(stream, max_examples)
    path = Path(dataset_id).expanduser()
    return _documents(files, path, name=dataset_id, description=_description(files), max_examples=max_examples)


def named_files(dataset_id: str, *, config: str | None, split: str, column: str = "text") -> list[File] | None:
    """Returns the files that `dataset_id` names; None if `datasets` must open them (`hub.HubStream`).

    Args:
        dataset_id: A file, a folder or an id on the hub.
        config: Configuration of a hub data set.
        split: Split of a hub data set.
        column: Column that holds the text.

    Raises:
        DataError: The name is neither a path nor an id, or the path has no readable file.
    """
    if not require_named(dataset_id):
        return None
    path = Path(dataset_id).expanduser()
    if path.is_file():
        format = format_of(path)
        if format is None:
            raise DataError(f"{path} is of no kind that is read as text: {KNOWN}. Convert it, or correct its suffix.")
        return [File(path=path, format=format, column=column)]
    if all((path / name).is_file() for name in FILES_OF_A_RUN):
        raise DataError(
            f"{dataset_id} is a run, and no data set: `plimsoll report {dataset_id}` shows it on a page, `plimsoll runs"
            f" {dataset_id}` in a line, and `plimsoll evaluate {dataset_id}` measures it again"
        )
    return _folder(path, config, split, column)


def require_named(dataset_id: str) -> bool:
    """Returns True if `dataset_id` is a file or folder, False if it may be an id on the hub. Uses no network.

    An id looks like org/name, without the suffix of a data file, and there is no folder org here.

    Raises:
        DataError: The name is neither a path nor an id.
    """
    with contextlib.suppress(OSError, RuntimeError):  # a name too long for a file; ~user of no user here
        path = Path(dataset_id).expanduser()
        if path.is_file() or path.is_dir():
            return True
        is_file_name = format_of(path) is not None or path.suffix.lower() in _OTHER_SUFFIXES
        if looks_like_hub_id(dataset_id) and not is_file_name and not path.parent.exists():
            return False
    raise DataError(
        f"there is no such path: {repr(dataset_id)[:200]} is no file or folder here ({Path.cwd()}), nor the id of "
        "a Hugging Face data set, which looks like org/name. Check the path."
    )


def worth_keeping(documents: Documents, *, tokens: int | None) -> bool:
    """Returns True if a text should be tokenised once before training, instead of streamed.

    This holds for files on this machine, of up to LARGEST_BYTES (4 GiB), if a run reads all of them.

    Args:
        documents: The text.
        tokens: Tokens that the run reads, its shuffle buffer included; None if the run's length is in epochs.
    """
    if documents.paths is None:
        return False
    size = text_bytes(documents)
    return size <= LARGEST_BYTES and (tokens is None or tokens * BYTES_A_TOKEN >= size)


def text_bytes(documents: Documents) -> int:
    """Returns the approximate bytes of the uncompressed text; 0 for a stream."""
    size = 0
    for path in documents.paths or ():
        packed = path.suffix.lower() in (*COMPRESSED, ".parquet")
        size += path.stat().st_size * (PACKED_TO if packed else 1)
    return size


def expected_bytes(documents: Documents, tokenizer: TextTokenizer) -> int:
    """Returns the estimated bytes of a text's ids, by its files' sizes; 0 for a stream or if `max_examples` is set."""
    if documents.max_examples is not None:
        return 0
    return text_bytes(documents) // BYTES_A_TOKEN * tokenizer.dtype.itemsize


def _documents(files: list[File], root: Path, **options: Any) -> Documents:
    """Returns the documents of files. Saved positions are valid while the files' names and sizes are the same."""
    contents = "\n".join(f"{file.path.relative_to(root)} {file.size()}" for file in files)
    return Documents(files, contents=contents, **options)


@cache
def python_sources(*, max_examples: int | None = None) -> Documents:
    """Opens the source files of Python's standard library: text that every machine has, without a download.

    One file is one document, in the order of the sorted names: about 15 MB and 700 files. Installed packages and the
    library's own tests are left out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - _NOT_SOURCES  # do not enter them: site-packages holds most of the files
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    files = [File(path=path, format="whole") for path in sorted(paths)]
    if not files:
        raise DataError(
            f"the standard library of this Python has no source files in {root}: it was installed without "
            "them. Name a data set with --dataset-id."
        )
    size = format_bytes(sum(file.size() for file in files))
    description = f"{len(files)} Python source files, {size}; documents: one file, one document"
    name = "the Python standard library"
    return _documents(files, root, name=name, description=description, max_examples=max_examples)


def _folder(path: Path, config: str | None, split: str, column: str) -> list[File] | None:
    """Returns the readable files of a folder; None if `datasets` must open the folder."""
    names = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    readable = [name for name in names if format_of(name) is not None]

    # Leave folders with named splits, or a card with configurations, to `datasets`.
    names_splits = any(_OTHER_SPLIT.search(part) for name in readable for part in name.with_suffix("").parts)
    if config is not None or split != "train" or names_splits or _has_configurations(path / "README.md"):
        return None

    if readable:
        return [File(path=path / name, format=format_of(name) or "", column=column) for name in readable]
    suffixes = Counter(name.suffix.lower() or name.name for name in names)
    if suffixes.keys() & _OTHER_SUFFIXES:
        return None
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(5)) or "nothing"
    raise DataError(f"no file in {path} is read as text: it holds {kinds}. Readable files: {KNOWN}.")


def _has_configurations(card: Path) -> bool:
    """Returns True if a data-set card names configurations in its header."""
    if not card.is_file():
        return False
    with card.open("rb") as content:
        head = content.read(65_536)
    return head.startswith(b"---") and b"\nconfigs:" in head


def _streamed(stream: HubStream, max_examples: int | None) -> Documents:
    stream.open()  # raises now if the id, split or column is wrong, not in the middle of a run
    name = f"{stream.name}, split {stream.split}" + (f", config {stream.config}" if stream.config else "")
    description = f"{name}: streamed through datasets, one row (of a .txt, a line), one document"
    if Path(stream.name).expanduser().is_dir():
        description += "; its file names tell splits apart, and files of other splits are not read"
    return Documents([stream], name=stream.name, description=description, contents=name, max_examples=max_examples)


def _description(files: list[File]) -> str:
    """Returns one line: formats, size, and the rules that end documents."""
    formats = Counter(file.format for file in files)
    size = format_bytes(sum(file.size() for file in files))
    kinds = " + ".join(f"{count} {format} file{'s' * (count > 1)}" for format, count in sorted(formats.items()))
    ways = {"jsonl": "one line, one document", "parquet": "one row, one document"}
    if "text" in formats:
        with open_bytes(next(file.path for file in files if file.format == "text")) as reader:
            ways["text"] = how_to_split(reader.read(MIB))
        if formats["text"] > 1:
            ways["text"] += " (the first file; each decides for itself)"
    documents = dict.fromkeys(ways[format] for format in sorted(formats))
    return f"{kinds}, {size}; documents: {'; '.join(documents)}"
