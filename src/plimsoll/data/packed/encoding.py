"""Encodes text on all cores of this machine or of a Ray cluster. Blocks of ids come in the order of the text.

A tokenizer of `tokenizers` releases Python's lock while it works, so threads suffice: each encodes one block.
Converting the ids to an array holds the lock for a small part of the time.

On a cluster (`--ray ADDRESS`) one process reads the documents and writes the folder. Ray encodes a block again if its
machine is lost. Every machine of the cluster needs Python with `tokenizers` and NumPy; plimsoll's code is sent to it.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plimsoll.data import cores, in_short
from plimsoll.data.in_order import encoding_pool, in_blocks, in_order
from plimsoll.data.text.documents import Piece
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.errors import PlimsollError
from plimsoll.units import KIB

BLOCK = 256 * KIB
"""Minimum characters of a block of text, which is encoded in one call."""
LOCAL = "local"
"""Value of `--ray` that starts Ray on this machine for one command."""
CONNECT_SECONDS = 10

Encoded = tuple[np.ndarray, np.ndarray]
"""int32 ids of all pieces of a block, concatenated, with end-of-text; and the number of ids of each piece."""


class Encoder(NamedTuple):
    """Encodes several blocks at the same time."""

    ahead: int
    """Number of blocks that are submitted before waiting for the first result."""
    submit: Callable[[Sequence[str], Sequence[bool]], Callable[[], Encoded]]
    """Starts to encode texts, with end-of-text after those whose flag is True. Returns a function that waits for the
    result."""


@contextmanager
def in_threads(tokenizer: TextTokenizer, *, workers: int | None) -> Iterator[Encoder]:
    """Opens an encoder with `workers` threads in this process; by default one for each available core."""
    if workers is None:
        workers = cores()
    with encoding_pool(workers) as pool:
        yield Encoder(workers + 1, lambda texts, ends: pool.submit(tokenizer.encode_each, texts, ends).result)


def encoded(pieces: Iterable[Piece], encoder: Encoder) -> Iterator[tuple[list[Piece], np.ndarray, np.ndarray]]:
    """Yields blocks of pieces in order, with the ids of a block, and the number of ids of each piece.

    Memory holds about `encoder.ahead` blocks.
    """

    def submit(block: list[Piece]) -> Callable[[], Encoded]:
        return encoder.submit([piece.text for piece in block], [piece.last for piece in block])

    blocks = in_blocks(pieces, lambda piece: len(piece.text), BLOCK)
    for block, (ids, lengths) in in_order(blocks, submit, encoder.ahead):
        yield block, ids, lengths


def require_reachable(address: str) -> None:
    """Raises PlimsollError if no cluster answers. Ray itself would try for minutes, and give no reason."""
    _imported()
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # "local" and "auto": Ray finds its address itself
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as problem:
        raise _no_cluster(address, problem) from None


def _no_cluster(address: str, problem: Exception) -> PlimsollError:
    return PlimsollError(
        f"--ray {address}: no Ray cluster answers there ({in_short(problem, kind=True)}). `ray start --head` starts"
        f" one, and its address is HOST:6379; --ray {LOCAL} uses this machine alone"
    )


@contextmanager
def on_ray(tokenizer: TextTokenizer, address: str, *, workers: int | None) -> Iterator[Encoder]:
    """Opens an encoder on a Ray cluster."""
    ray = _imported()
    started_here = address == LOCAL
    try:
        ray.init(
            address=None if started_here else address,
            num_cpus=workers if started_here else None,
            runtime_env={} if started_here else {"py_modules": [str(Path(__file__).parents[2])]},
            include_dashboard=False if started_here else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as problem:  # the library raises a dozen unrelated classes here
        raise _no_cluster(address, problem) from None
    shared = ray.put((tokenizer.to_json(), tokenizer.end_of_text_token))
    encode = ray.remote(num_cpus=1)(_encode)

    def result(reference: Any) -> Encoded:
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as problem:
            reason = " ".join(str(problem).split())[-300:]
            raise PlimsollError(
                f"a block of text could not be encoded on the Ray cluster ({type(problem).__name__}: {reason})."
                " Complete shards are kept: run the same command again to continue"
            ) from None

    try:
        ahead = 2 * (workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
        yield Encoder(ahead, lambda texts, ends: partial(result, encode.remote(shared, texts, ends)))
    finally:
        ray.shutdown()


def _encode(tokenizer: tuple[str, str], texts: Sequence[str], ends: Sequence[bool]) -> Encoded:
    """Encodes a block on a machine of the cluster."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray starts a process for each core
    return tokenizer_of(*tokenizer).encode_each(texts, ends)


@cache
def tokenizer_of(content: str, end_of_text: str) -> TextTokenizer:
    """Builds a tokenizer from the content of a `tokenizer.json` and the token that ends a text."""
    from tokenizers import Tokenizer

    return TextTokenizer(Tokenizer.from_str(content), end_of_text=end_of_text)


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as problem:
        raise PlimsollError(
            f"--ray needs the package ray, which cannot be imported here ({problem}): `pip install"
            " ray`, or leave --ray out: all cores of this machine are used without it"
        ) from None
