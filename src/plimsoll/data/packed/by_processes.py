"""Text to ids by all processes of a run: each reads the documents, and encodes every n-th of their blocks.

The first process forms the blocks and takes their ids in order, as if its own threads had made them: the folder that it
writes is the one that it would write alone. The others encode their share of the same blocks while they wait for the
session (`wait_and_encode`), and send their ids (`processes.connections`). At the end each has the whole folder
(`send_folder`, `receive_folder`), since the windows of a batch lie anywhere in it.

What a process reads and encodes besides, a stream or `--no-use-streaming`, is not shared.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import secrets
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
from plimsoll.processes.connections import Connection, Port, breaking, connect
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.packed.encoding import Encoded, Encoder
    from plimsoll.data.text.tokenizer import TextTokenizer

PIECE_BYTES = MIB
"""Bytes of a file that are sent at a time."""
IDS, REFUSED, END = b"i", b"r", b"e"
"""How a message begins: of the ids of a block, of a reason why there are none, after the last block."""
DIGEST_BYTES = 16


class Board(Protocol):
    """A store that all processes read (`training.distributed.Board`): values are JSON."""

    @property
    def host(self) -> str: ...
    def write(self, name: str, value: Any) -> None: ...
    def read(self, name: str) -> Any: ...
    def read_first_of(self, *names: str) -> tuple[str, Any]: ...


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
        with _helpers(team, job, _asked(documents, tokenizer, position), say) as helpers:
            yield _shared(helpers, own)
            for helper in helpers.items():
                _received(*helper, END)


@contextlib.contextmanager
def _helpers(
    team: _Team, job: str, asked: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[dict[int, Connection]]:
    """Opens connections to the processes that take part in a job, by their numbers."""
    others = range(1, team.processes)
    with contextlib.closing(Port(team.processes)) as port:
        team.board.write(job, {**asked, "port": port.address})
        answers = {process: team.board.read(f"{job}/answer-{process}") for process in others}
        for process, why in answers.items():
            if why is not None:
                say(f"tokens: process {process} does not take part: {why}")
        helpers = port.accepted([process for process in others if answers[process] is None])
    try:
        for share, connection in enumerate(helpers.values(), 1):
            with contextlib.suppress(OSError):  # it is gone: found out where its ids are awaited
                connection.send(json.dumps([share, 1 + len(helpers)]).encode())
        yield helpers
    finally:
        for connection in helpers.values():
            connection.close()


def _shared(helpers: Mapping[int, Connection], own: Encoder) -> Encoder:
    """Returns an encoder that leaves all but every n-th block, from the first on, to the other processes."""
    from plimsoll.data.packed.encoding import Encoder

    turns = itertools.cycle([None, *helpers.items()])

    def submit(texts: Sequence[str], ends: Sequence[bool]) -> Any:
        turn = next(turns)
        return own.submit(texts, ends) if turn is None else partial(_ids, *turn, _digest(texts))

    return Encoder(own.ahead * (1 + len(helpers)), submit)


def _digest(texts: Sequence[str]) -> bytes:
    """Returns what two processes have in common exactly if they cut the same block from the same text."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


def _ids(process: int, helper: Connection, digest: bytes) -> Encoded:
    message = _received(process, helper, IDS)
    if message[:DIGEST_BYTES] != digest:
        raise _other_text(process)
    pieces, itemsize = np.frombuffer(message, np.int32, 2, DIGEST_BYTES).tolist()
    lengths = np.frombuffer(message, np.int32, pieces, DIGEST_BYTES + 8).astype(np.int64)
    ids = np.frombuffer(message, np.dtype(f"u{itemsize}"), offset=DIGEST_BYTES + 8 + 4 * pieces)
    return ids.astype(np.int32), lengths


def _received(process: int, helper: Connection, kind: bytes) -> bytes:
    """Returns the next message of a process, of a kind. Raises DataError for its reason, or a message of another."""
    with breaking(process):
        message = helper.receive()
    if message[:1] == REFUSED:
        raise DataError(message[1:].decode())
    if message[:1] != kind:
        raise _other_text(process)
    return message[1:]


def _other_text(process: int) -> DataError:
    return DataError(
        f"process {process} reads another text than the first process under the same name, of the same size: copy the"
        " same files to every machine, and run the same command again"
    )


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
    try:
        documents = _documents(asked)
        connection = connect(board.host, asked["port"], process)
    except (PlimsollError, OSError) as problem:  # the first encodes it without this one, and other data is found later
        board.write(f"{job}/answer-{process}", str(problem))
        return
    try:
        board.write(f"{job}/answer-{process}", None)
        with contextlib.suppress(ConnectionError):  # the first takes no more
            share, processes = json.loads(connection.receive())
            _send_share(connection, documents, asked, process, (share, processes))
    finally:
        connection.close()


def _send_share(
    connection: Connection, documents: Documents, asked: Mapping[str, Any], process: int, share: tuple[int, int]
) -> None:
    """Sends the ids of every n-th block from one on (`share`: that one, n), or why it cannot."""
    from plimsoll.data.packed.encoding import blocks, in_order, in_threads, tokenizer_of

    tokenizer = tokenizer_of(asked["tokenizer"], asked["end_of_text"])
    try:
        with in_threads(tokenizer, workers=None) as encoder:
            mine = _every(blocks(documents.pieces(asked["position"])), *share)
            for block, ids, lengths in in_order(mine, encoder):
                connection.send(IDS + _digest([piece.text for piece in block]) + _message(ids, lengths))
        _require_unchanged(documents, asked, process)
        connection.send(END)
    except ConnectionError:
        raise
    except (PlimsollError, OSError) as problem:
        connection.send(REFUSED + f"process {process} says: {problem}".encode())


def _every(of: Iterable[Any], first: int, step: int) -> Iterator[Any]:
    return (item for number, item in enumerate(of) if number % step == first)


def _message(ids: np.ndarray, lengths: np.ndarray) -> bytes:
    """Returns ids as bytes, two for each where they fit."""
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


def _require_unchanged(documents: Documents, asked: Mapping[str, Any], process: int) -> None:
    if files_facts(documents.paths or []) != asked["text"]:
        raise DataError(
            f"{documents.name} changed on process {process} while it was tokenised. Run the same command again"
        )


def send_folder(board: Board, name: str, receivers: Sequence[int]) -> None:
    """Sends a folder of the cache's tokens to processes that call `receive_folder`."""
    if not receivers:
        return
    folder = cache.cache_folder() / "tokens" / name
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != CHECKED}
    digests = {file: entry["sha256"] for file, entry in json.loads((folder / CHECKED).read_text()).items()}
    with contextlib.closing(Port(len(receivers))) as port:
        board.write(f"{name}/sent", {"files": files, "digests": digests, "port": port.address})
        connections = port.accepted([process for process in receivers if board.read(f"{name}/reached-{process}")])
    try:
        for file in files:
            with open(folder / file, "rb") as read:
                while piece := read.read(PIECE_BYTES):
                    for process in [*connections]:
                        try:
                            connections[process].send(piece)
                        except ConnectionError:  # it is gone, or has no room for more
                            connections.pop(process).close()
    finally:
        for connection in connections.values():
            connection.close()


def receive_folder(board: Board, process: int, name: str) -> None:
    """Writes the folder that `send_folder` sends into the cache, or leaves it out where that has no room.

    Raises:
        DataError: What arrived is not what was sent.
        RunError: The first process is not reached, or its connection breaks.
    """
    from plimsoll.data.packed.writer import LEAST_FREE

    sent = board.read(f"{name}/sent")
    home = cache.cache_folder() / "tokens"
    home.mkdir(exist_ok=True)
    part, folder = home / f"{name}.{secrets.token_hex(4)}.received", home / name
    fits = sum(sent["files"].values()) < free_bytes(folder) - LEAST_FREE
    connection = None
    try:
        connection = connect(board.host, sent["port"], process) if fits else None
    finally:
        board.write(f"{name}/reached-{process}", connection is not None)
    if connection is None:
        return
    try:
        part.mkdir()
        for file, size in sent["files"].items():
            with open(part / file, "wb") as written:
                while written.tell() < size:
                    with breaking(0):
                        piece = connection.receive()
                    written.write(piece)
        _put(part, folder, sent["digests"])
    except OSError as problem:  # others filled the disk meanwhile
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        connection.close()
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
