"""Opens the documents that a user names: a file, a folder, a data set of `datasets`, or an id on the hub."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections import Counter
from pathlib import Path

from plimsoll.data import STANDARD_LIBRARY
from plimsoll.data.hub import HubStream, looks_like_hub_id
from plimsoll.data.text.documents import Documents, contents_of
from plimsoll.data.text.formats import KNOWN, File, format_of, splitting_of
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import format_bytes

_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_OTHER_SPLIT = re.compile(r"(^|[-_. ])(test|validation|valid|val|dev|eval)([-_. ]|$)", re.IGNORECASE)


def open_documents(
    dataset_id: str,
    *,
    config: str | None = None,
    split: str = "train",
    text_column: str = "text",
    max_examples: int | None = None,
) -> Documents:
    """Opens the documents that `dataset_id` names; nothing of them is kept in memory.

    A path that exists is read from there; else `org/name` is an id on the Hugging Face hub. A folder whose files name
    their splits, or that carries a data-set card with configurations, is left to `datasets`, which knows those rules.
    Every other folder is read whole, in the order of its sorted names.
    """
    if max_examples is not None and max_examples < 1:
        raise RecipeError(f"--max-examples must be 1 or more documents, got {max_examples}")
    if dataset_id == STANDARD_LIBRARY:
        return python_sources(max_examples=max_examples)
    path = Path(dataset_id).expanduser()
    if path.is_file():
        format = format_of(path)
        if format is None:
            raise DataError(
                f"{path} is of no kind that is read as text: {KNOWN}. Convert it, or rename it if it is one."
            )
        files = [File(path=path, format=format, column=text_column)]
    elif path.is_dir():
        files = _saved(path, split, text_column) or _folder(path, config, split, text_column)
    elif looks_like_hub_id(dataset_id) and format_of(path) is None and not path.parent.exists():
        files = None
    else:
        raise DataError(
            f"there is no such path: {dataset_id!r} is no file or folder here ({Path.cwd()}), nor the id of "
            "a Hugging Face data set, which looks like org/name. Check the path."
        )
    if files is None:
        return _streamed(str(dataset_id), config, split, text_column, max_examples)  # knows its files' splits
    return Documents(
        files,
        name=dataset_id,
        description=_describe(files),
        contents=contents_of(files, path),
        max_examples=max_examples,
    )


def python_sources(*, max_examples: int | None = None) -> Documents:
    """Opens the source files of Python's standard library: text that every machine has, without a download.

    One file is one document, in the order of the sorted names: about 15 MB and 700 files. Left out are installed
    packages, the library's own tests, and files that are not UTF-8, which `describe()` counts.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - _NOT_SOURCES  # not entered: site-packages holds most of the files
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    files = [File(path=path, format="whole") for path in sorted(paths) if _is_text(path)]
    if not files:
        raise DataError(
            f"the standard library of this Python has no source files in {root}: it was installed without "
            "them. Name a data set with --dataset-id."
        )
    size = format_bytes(sum(file.size() for file in files))
    return Documents(
        files,
        name="the Python standard library",
        description=f"{len(files)} Python source files, {size}; documents: one file, one document; "
        f"{len(paths) - len(files)} files skipped that are not UTF-8",
        contents=contents_of(files, root),
        max_examples=max_examples,
    )


def _is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_bytes().decode("utf-8")
    except (UnicodeDecodeError, OSError):
        return False


def _saved(path: Path, split: str, column: str) -> list[File] | None:
    """Returns the arrow files of `save_to_disk`; None if the folder was not made by it."""
    if (path / "dataset_dict.json").is_file():
        splits = [str(name) for name in _listed(path / "dataset_dict.json", "splits")]
        if split not in splits:
            names = ", ".join(splits)
            raise DataError(f"{path} has no split {split!r}; it has: {names}. Choose one with --split.")
        path = path / split
    if not (path / "state.json").is_file():
        return None
    entries = _listed(path / "state.json", "_data_files")
    names = [str(entry["filename"]) for entry in entries if isinstance(entry, dict) and "filename" in entry]
    missing = [name for name in names if not (path / name).is_file()]
    if missing or not names:
        raise DataError(
            f"{path} was saved by datasets with {len(names)} files, and {len(missing)} of them are missing "
            f"({', '.join(missing[:3])}). Copy the folder again."
        )
    return [File(path=path / name, format="arrow", column=column) for name in names]


def _listed(path: Path, name: str) -> list:
    """Returns a list out of a JSON file that `datasets` wrote."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path} is not JSON ({problem}): the data set is damaged. Save or copy it again.") from problem
    listed = content.get(name, []) if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise DataError(f"{path} has no list of {name}: the data set is damaged. Save or copy it again.")
    return listed


def _folder(path: Path, config: str | None, split: str, column: str) -> list[File] | None:
    """Returns the files of a folder; None if it is to be opened by the rules of `datasets`."""
    within = {file: file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()}
    inside = [file for file, name in within.items() if not any(part.startswith(".") for part in name.parts)]
    known = [file for file in inside if format_of(file) is not None]
    names_splits = any(_OTHER_SPLIT.search(part) for file in known for part in within[file].with_suffix("").parts)
    has_configurations = False
    if (card := path / "README.md").is_file():
        with card.open("rb") as file:
            head = file.read(65_536)
        has_configurations = head.startswith(b"---") and b"\nconfigs:" in head
    if config is not None or split != "train" or has_configurations or names_splits:
        return None
    if known:
        return [File(path=file, format=format_of(file) or "", column=column) for file in known]
    if any(file.suffix.lower() in (".csv", ".tsv", ".json") for file in inside):
        return None
    suffixes = Counter(file.suffix or file.name for file in inside).most_common(5)
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in suffixes) or "nothing"
    raise DataError(f"no file in {path} is read as text: it holds {kinds}. What is read: {KNOWN}.")


def _streamed(name: str, config: str | None, split: str, column: str, max_examples: int | None) -> Documents:
    stream = HubStream(name=name, config=config, split=split, column=column)
    stream.open()  # a wrong id, split or column is refused now and not in the middle of a run
    which = f"{name}, split {split}" + (f", config {config}" if config else "")
    return Documents(
        [stream],
        name=name,
        description=f"{which}: streamed through datasets, one row (of a .txt, a line), one document{_left_out(stream)}",
        contents=which,
        max_examples=max_examples,
    )


def _left_out(stream: HubStream) -> str:
    """Returns in words which files of a local folder are not of this split; empty where all are."""
    root = Path(stream.name).expanduser()
    if not root.is_dir():
        return ""
    read = {Path(file).resolve() for file in stream.files()}
    every = [path for path in sorted(root.rglob("*")) if format_of(path) is not None and path.is_file()]
    others = [str(path.relative_to(root)) for path in every if path.resolve() not in read]
    if not read or not others:
        return ""
    shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
    return f"; its file names tell splits apart, and {len(others)} of {len(every)} files are not of this one: {shown}"


def _describe(files: list[File]) -> str:
    """Returns one line: formats, size, and where documents end."""
    formats = Counter(file.format for file in files)
    size = format_bytes(sum(file.path.stat().st_size for file in files))
    kinds = " + ".join(f"{n} {format} file{'s' * (n > 1)}" for format, n in sorted(formats.items()))
    ways = []
    for format in sorted(formats):
        of_format = [file for file in files if file.format == format]
        way = splitting_of(of_format[0])
        several = format == "text" and len(of_format) > 1
        ways.append(way + " (the first file; each decides for itself)" * several)
    return f"{kinds}, {size}; documents: {'; '.join(dict.fromkeys(ways))}"
