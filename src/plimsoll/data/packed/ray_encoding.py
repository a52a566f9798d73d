"""Blocks of text encoded on a Ray cluster (`--ray ADDRESS`), as `encoding.in_threads` does it in this process.

One process reads the documents and writes the folder; what is encoded where makes no difference to it. A block whose
machine was lost is encoded again by Ray. Every machine of the cluster needs Python with `tokenizers` and NumPy; our own
code is sent to it.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from plimsoll.data.packed.encoding import Encoded, Encoder
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.errors import PlimsollError

LOCAL = "local"
"""The address of a Ray that is started for this command, on this machine."""
CONNECT_SECONDS = 10


def require_reachable(address: str) -> None:
    """Raises PlimsollError where no cluster answers: Ray itself would try for minutes, and name no reason."""
    _imported()
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # local, auto: Ray finds these
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as problem:
        raise _no_cluster(address, problem) from None


def _no_cluster(address: str, problem: Exception) -> PlimsollError:
    reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
    return PlimsollError(
        f"--ray {address}: no Ray cluster answers there ({reason}). `ray start --head` starts one, and its address is"
        f" HOST:6379; --ray {LOCAL} uses this machine alone"
    )


@contextmanager
def on_ray(tokenizer: TextTokenizer, *, address: str, workers: int | None) -> Iterator[Encoder]:
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
                f"a block of text could not be encoded on the Ray cluster ({type(problem).__name__}: {reason}). What"
                " was marked is good: run the same command again to continue"
            ) from None

    try:
        ahead = 2 * (workers or max(1, int(ray.cluster_resources().get("CPU", 1))))
        yield Encoder(ahead, lambda texts, ends: partial(result, encode.remote(shared, texts, ends)))
    finally:
        ray.shutdown()


def _encode(tokenizer: tuple[str, str], texts: Sequence[str], ends: Sequence[bool]) -> Encoded:
    """Encodes a block on a machine of the cluster."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray starts a process for each core
    return _tokenizer(*tokenizer).encode_each(texts, ends)


@cache
def _tokenizer(content: str, end_of_text: str) -> TextTokenizer:
    from tokenizers import Tokenizer

    return TextTokenizer(Tokenizer.from_str(content), end_of_text=end_of_text)


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as problem:
        raise PlimsollError(
            f"--ray needs the package ray, which cannot be imported here ({problem}): `pip install"
            " 'plimsoll-jax[ray]'`, or leave --ray out: all cores of this machine are used without it"
        ) from None
