"""What each process of a run says of itself, in the run's `processes.json`: bytes, waits, and how fast it is alone.

In every step all wait for the slowest, so that it takes all of them equally long, and its time names nobody. What names
one is what each does alone: it waits for its data, and on a CPU it times a matrix product now and then. On an
accelerator that would wait for the step under way, and only the waits for data tell.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

FIRST_SECONDS, TELL_SECONDS = 1.0, 10.0
"""Time until a process tells again, which doubles up to the second: a product and the telling take milliseconds."""
PRODUCT_SIZE, PRODUCTS, PRODUCTS_KEPT = 384, 3, 15
"""Rows of the matrices, products at a time, and how many of the last ones count, by their median."""
STRAGGLES = 1.2
"""Times the others' median by which a process's own time of a step is more, if it is to be named."""


class Board(Protocol):
    """A store that all processes read (`training.distributed.Board`)."""

    def put(self, name: str, value: Any) -> None: ...
    def latest(self, name: str) -> Any: ...


class Pace:
    """The processes of one session, as seen from each of them; the first keeps what all tell."""

    def __init__(
        self,
        board: Board,
        process: int,
        processes: int,
        write: Callable[[Mapping[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        """Keeps what it is told with.

        Args:
            board: The store.
            process: Number of this process, from 0.
            processes: How many there are.
            write: Receives, in the first process, what `processes.json` is to hold.
            say: Receives a line about a process for which the others wait, once for each.
        """
        self._board, self._process, self._processes = board, process, processes
        self._write, self._say = write, say
        self._product = _product() if jax.default_backend() == "cpu" else None
        self._seconds: deque[float] = deque(maxlen=PRODUCTS_KEPT)
        self._next, self._wait = 0.0, FIRST_SECONDS
        self._named: set[int] = set()

    def tell(self, step: int, row: Mapping[str, float]) -> None:
        """Tells the others about a logged row, after FIRST_SECONDS, later after TELL_SECONDS at least.

        Args:
            step: Number of the step.
            row: Its `step_seconds`, `data_seconds`, `resident_bytes` and `peak_resident_bytes`.
        """
        if time.monotonic() < self._next:
            return
        if self._product is not None:
            self._seconds.extend(_timed(self._product) for _ in range(PRODUCTS))
        own = {
            "process": self._process,
            "host": socket.gethostname(),
            "step": step,
            "resident_bytes": row.get("device_bytes", row["resident_bytes"]),
            "peak_bytes": row.get("peak_device_bytes", row["peak_resident_bytes"]),
            "step_seconds": row["step_seconds"],
            "data_seconds": row["data_seconds"],
            "product_seconds": statistics.median(self._seconds) if self._seconds else None,
        }
        self._board.put(f"pace-{self._process}", own)
        if self._process == 0:
            told = [self._board.latest(f"pace-{number}") for number in range(1, self._processes)]
            rows = slowest_first([own, *(row for row in told if row is not None)])
            self._write({"processes": rows, "straggler": straggler(rows)})
            self._name(rows)
        self._next = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, TELL_SECONDS)

    def _name(self, rows: Sequence[Mapping[str, Any]]) -> None:
        number, measuring = straggler(rows), self._product is not None and len(self._seconds) < PRODUCTS_KEPT
        if measuring or number is None or number in self._named:  # the first few products are often slow
            return
        self._named.add(number)
        self._say(straggler_words(rows))


def slowest_first(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the processes with `own_seconds`, the slowest first: what a step would take if all were as fast as it.

    That is its wait for data, and the rest of a step in proportion to its matrix product beside the slowest one's.
    """
    products = [row["product_seconds"] for row in rows if row["product_seconds"] is not None]
    slowest, waited = max(products, default=None), max(row["data_seconds"] for row in rows)

    def own(row: Mapping[str, Any]) -> float:
        rest = max(0.0, row["step_seconds"] - waited)
        share = 1.0 if slowest is None or row["product_seconds"] is None else row["product_seconds"] / slowest
        return row["data_seconds"] + rest * share

    return sorted(({**row, "own_seconds": own(row)} for row in rows), key=lambda row: -row["own_seconds"])


def straggler(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Returns the number of the process for which the others wait; None where they are about as fast.

    Args:
        rows: From `slowest_first`.
    """
    if len(rows) < 2:
        return None
    others = statistics.median(row["own_seconds"] for row in rows[1:])
    return rows[0]["process"] if rows[0]["own_seconds"] > STRAGGLES * others else None


def straggler_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the sentence that names the first of the rows as the process for which the others wait."""
    first, others = rows[0], rows[1:]
    facts = [f"waits {first['data_seconds']:.3g} s of a step for its data"] if first["data_seconds"] else []
    if first["product_seconds"] is not None:
        beside = statistics.median(row["product_seconds"] for row in others if row["product_seconds"] is not None)
        facts.append(
            f"takes {first['product_seconds'] * 1000:.3g} ms for a matrix product that takes the others"
            f" {beside * 1000:.3g}"
        )
    return (
        f"process {first['process']} ({first['host']}) is the slowest: it {' and '.join(facts)}. The others wait for it"
        f" in every step, {first['step_seconds']:.3g} s now; look at what else runs there"
    )


def _product() -> Callable[[], Any]:
    device = jax.local_devices()[0]
    matrix = jax.device_put(np.ones((PRODUCT_SIZE, PRODUCT_SIZE), np.float32), device)
    multiply = jax.jit(lambda left: left @ left)
    jax.block_until_ready(multiply(matrix))  # compiled now
    return lambda: jax.block_until_ready(multiply(matrix))


def _timed(product: Callable[[], Any]) -> float:
    start = time.perf_counter()
    product()
    return time.perf_counter() - start
