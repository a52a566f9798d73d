"""Text to ids by all processes of a run: each reads the documents, and encodes every n-th of their blocks.

The first process forms the blocks and takes their ids in order, as if its own threads had made them: the folder that it
writes is the one that it would write alone. The others encode their share of the same blocks while they wait for the
session (`wait_and_encode`), and send ids through the store that connects the processes. At the end each has the whole
folder (`send_folder`, `receive_folder`), since the windows of a batch lie anywhere in it.

What a process reads and encodes besides, a stream or `--no-use-streaming`, is not shared.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from plimsoll import cache
from plimsoll.data.disk import free_bytes
from plimsoll.data.same_data import files_facts
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.formats import File
from plimsoll.data.unchanged import CHECKED, note_unchanged
from plimsoll.errors import DataError, PlimsollError
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.packed.encoding import Encoded, Encoder
    from plimsoll.data.text.tokenizer import TextTokenizer

AHEAD = 8
"""Blocks that a process encodes before the first process has taken the first of them."""
PIECE_BYTES, PIECES = MIB, 4
"""Bytes of a piece of a file, and pieces that are in the store at a time: one is read while the next is written."""
REFUSED = b"refused "
"""How a message begins that stands for the ids of a block."""


class Board(Protocol):
    """A store that all processes read (`training.distributed.Board`): values are JSON, or bytes."""

    def write(self, name: str, value: Any) -> None: ...
    def read(self, name: str) -> Any: ...
    def read_first_of(self, *names: str) -> tuple[str, Any]: ...
    def write_bytes(self, name: str, value: bytes) -> None: ...
    def take_bytes(self, name: str, unless: str | None = None) -> bytes | None: ...


@dataclass
class _Team:
    """The processes that may encode for the first one."""

    board: Board
    processes: int
    jobs: int = 0
    """Texts that were encoded together so far."""


_team: ContextVar[_Team | None] = ContextVar("team", default=None)


@contextlib.contextmanager
def helped_by(board: Board, processes: int) -> Iterator[None]:
    """Lets the other processes encode what this one, the first, opens with `opened` meanwhile."""
    token = _team.set(_Team(board, processes))
    try:
        yield
    finally:
        _team.reset(token)


@contextlib.contextmanager
def opened(
    documents: Documents, tokenizer: TextTokenizer, position: dict | None, say: Callable[[str], None]
) -> Iterator[Encoder]:
    """Opens an encoder of the documents after a position: a thread for each core, and the other processes of a run.

    Args:
        documents: Files, which the other processes find under the same names.
        tokenizer: The encoder.
        position: Position in the documents (`Piece.position`) at which the first block begins; None for the beginning.
        say: Receives a line about each process that cannot take part.

    Raises:
        DataError: The text is another one on another process, or changed there meanwhile.
    """
    from plimsoll.data.packed.encoding import in_threads

    with in_threads(tokenizer, workers=None) as own:
        team = _team.get()
        if team is None:
            yield own
            return
        job = f"encode-{team.jobs}"
        team.jobs += 1
        team.board.write(job, _asked(documents, tokenizer, position))
        answers = [team.board.read(f"{job}/answer-{process}") for process in range(1, team.processes)]
        who = [0, *(process for process, why in enumerate(answers, 1) if why is None)]
        team.board.write(f"{job}/who", who)
        for process, why in enumerate(answers, 1):
            if why is not None:
                say(f"tokens: process {process} does not take part: {why}")
        try:
            yield _shared(team.board, job, len(who), own)
            changed = [why for process in who[1:] if (why := team.board.read(f"{job}/done-{process}"))]
        finally:
            team.board.write(f"{job}/closed", True)
        if changed:
            raise DataError(changed[0])


def _shared(board: Board, job: str, processes: int, own: Encoder) -> Encoder:
    """Returns an encoder that leaves all but every n-th block, from the first on, to the other processes."""
    from plimsoll.data.packed.encoding import Encoder

    count = 0

    def submit(texts: Sequence[str], ends: Sequence[bool]) -> Any:
        nonlocal count
        number, count = count, count + 1
        return own.submit(texts, ends) if number % processes == 0 else partial(_taken, board, job, number)

    return Encoder(own.ahead * processes, submit)


def _taken(board: Board, job: str, number: int) -> Encoded:
    message = board.take_bytes(f"{job}/ids-{number}")
    assert message is not None
    board.write_bytes(f"{job}/taken-{number}", b".")
    if message.startswith(REFUSED):
        raise DataError(message.removeprefix(REFUSED).decode())
    pieces, itemsize = np.frombuffer(message, np.int32, 2).tolist()
    lengths = np.frombuffer(message, np.int32, pieces, 8).astype(np.int64)
    ids = np.frombuffer(message, np.dtype(f"u{itemsize}"), offset=8 + 4 * pieces)
    return ids.astype(np.int32), lengths


def wait_and_encode(board: Board, process: int, awaited: str) -> Any:
    """Encodes a share of what the first process asks for, until it has written what is awaited, and returns that.

    Args:
        board: The store.
        process: Number of this process.
        awaited: Name under which the first process writes at last.
    """
    for number in itertools.count():
        job = f"encode-{number}"
        name, value = board.read_first_of(job, awaited)
        if name == awaited:
            return value
        _encode_share(board, process, job, value)


def _encode_share(board: Board, process: int, job: str, asked: Mapping[str, Any]) -> None:
    from plimsoll.data.packed.encoding import blocks, in_order, in_threads, tokenizer_of

    try:
        documents = _documents(asked)
    except (PlimsollError, OSError) as problem:  # the first encodes it without this one, and other data is found later
        board.write(f"{job}/answer-{process}", str(problem))
        return
    board.write(f"{job}/answer-{process}", None)
    who = board.read(f"{job}/who")
    share, processes = who.index(process), len(who)
    tokenizer = tokenizer_of(asked["tokenizer"], asked["end_of_text"])
    number = share
    try:
        with in_threads(tokenizer, workers=None) as encoder:
            mine = _every(blocks(documents.pieces(asked["position"])), share, processes)
            for place, (_, ids, lengths) in enumerate(in_order(mine, encoder)):
                if place >= AHEAD and not _is_taken(board, job, number - AHEAD * processes):
                    return
                board.write_bytes(f"{job}/ids-{number}", _message(ids, lengths))
                number += processes
        board.write(f"{job}/done-{process}", _why_not_the_same(documents, asked, process))
    except (PlimsollError, OSError) as problem:  # where the first reads next: a block, or whether all is done
        said = f"process {process} says: {problem}"
        board.write_bytes(f"{job}/ids-{number}", REFUSED + said.encode())
        board.write(f"{job}/done-{process}", said)


def _is_taken(board: Board, job: str, number: int) -> bool:
    """Waits until the first process has taken a block, and returns False if it takes none any more."""
    return board.take_bytes(f"{job}/taken-{number}", unless=f"{job}/closed") is not None


def _every(of: Iterable[Any], first: int, step: int) -> Iterator[Any]:
    return (item for number, item in enumerate(of) if number % step == first)


def _message(ids: np.ndarray, lengths: np.ndarray) -> bytes:
    """Returns ids as bytes, two for each where they fit: the store compresses what it is sent, which takes its time."""
    itemsize = 2 if not ids.size or ids.max() < 2**16 else 4
    head = np.array([len(lengths), itemsize, *lengths], np.int32)
    return head.tobytes() + ids.astype(np.dtype(f"u{itemsize}")).tobytes()


def _asked(documents: Documents, tokenizer: TextTokenizer, position: dict | None) -> dict[str, Any]:
    """Returns, as JSON, what another process needs to encode a share."""
    files = [file for file in documents.files if isinstance(file, File)]
    return {
        "files": [[str(file.path), file.format, file.column] for file in files],
        "text": files_facts(documents.paths or []),
        "name": documents.name,
        "digest": documents.digest,
        "max_examples": documents.max_examples,
        "tokenizer": tokenizer.to_json(),
        "end_of_text": tokenizer.end_of_text_token,
        "position": position,
    }


def _documents(asked: Mapping[str, Any]) -> Documents:
    """Returns the documents of a job, as this machine has them; raises DataError or OSError where it has others."""
    files = [File(path=Path(path), format=format, column=column) for path, format, column in asked["files"]]
    documents = Documents(files, name=asked["name"], description="", contents="", max_examples=asked["max_examples"])
    documents.digest = asked["digest"]
    if files_facts(documents.paths or []) != asked["text"]:
        raise DataError(f"{documents.name} holds another text here")
    return documents


def _why_not_the_same(documents: Documents, asked: Mapping[str, Any], process: int) -> str | None:
    if files_facts(documents.paths or []) == asked["text"]:
        return None
    return f"{documents.name} changed on process {process} while it was tokenised. Run the same command again"


def send_folder(board: Board, name: str, receivers: Sequence[int]) -> None:
    """Sends a folder of the cache's tokens to processes that call `receive_folder`."""
    if not receivers:
        return
    folder = cache.cache_folder() / "tokens" / name
    files = sorted(path.name for path in folder.iterdir() if path.name != CHECKED)
    digests = {file: entry["sha256"] for file, entry in json.loads((folder / CHECKED).read_text()).items()}
    board.write(f"{name}/files", {file: (folder / file).stat().st_size for file in files})
    board.write(f"{name}/digests", digests)
    count = 0
    for piece in (piece for file in files for piece in _pieces(folder / file)):
        if count >= PIECES:
            _wait_for_taken(board, name, receivers, count - PIECES)
        for process in receivers:
            board.write_bytes(f"{name}/{process}/piece-{count}", piece)
        count += 1
    for number in range(max(0, count - PIECES), count):
        _wait_for_taken(board, name, receivers, number)


def _pieces(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as read:
        while piece := read.read(PIECE_BYTES):
            yield piece


def _wait_for_taken(board: Board, name: str, receivers: Sequence[int], number: int) -> None:
    for process in receivers:
        board.take_bytes(f"{name}/{process}/taken-{number}")


def receive_folder(board: Board, process: int, name: str) -> None:
    """Writes the folder that `send_folder` sends into the cache, or leaves it out where that has no room.

    Raises:
        DataError: What arrived is not what was sent.
    """
    from plimsoll.data.packed.writer import LEAST_FREE

    sizes, digests = board.read(f"{name}/files"), board.read(f"{name}/digests")
    home = cache.cache_folder() / "tokens"
    home.mkdir(exist_ok=True)
    part, folder = home / f"{name}.{os.getpid()}.received", home / name
    fits = sum(sizes.values()) < free_bytes(folder) - LEAST_FREE
    count = 0
    try:
        part.mkdir()
        for file, size in sizes.items():
            with open(part / file, "wb") as written:
                while size > 0:
                    piece = board.take_bytes(f"{name}/{process}/piece-{count}")
                    assert piece is not None
                    board.write_bytes(f"{name}/{process}/taken-{count}", b".")
                    count, size = count + 1, size - len(piece)
                    if fits:
                        written.write(piece)
        if fits:
            _put(part, folder, digests)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put(part: Path, folder: Path, digests: Mapping[str, str]) -> None:
    """Gives a received folder its name, unless another process of this machine was first."""
    note_unchanged(part, digests)
    noted = json.loads((part / CHECKED).read_text())
    wrong = [file for file, digest in digests.items() if noted[file]["sha256"] != digest]
    if wrong:
        raise DataError(f"{folder} did not arrive as it was sent: {', '.join(wrong)} has another SHA-256")
    with contextlib.suppress(OSError):
        part.rename(folder)
