"""What each process of a run says of itself, in the run's `processes.json`: bytes, waits, and how fast it is alone.

In every step all wait for the slowest, so that it takes all of them equally long, and its time names nobody. What names
one is what each does alone: it waits for its data, and on a CPU it times a matrix product now and then. On an
accelerator that would wait for the step under way, and only the waits for data tell. `straggler` decides who is named,
for the log, `plimsoll runs` and the report alike.
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
PRODUCT_SIZE, PRODUCTS = 384, 3
"""Rows of the matrices, and products at a time."""
LOOKS = 5
"""How many of the last times count, by their medians. Nobody is named before that: the first times are often slow."""
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
        self._product_seconds: deque[float] = deque(maxlen=PRODUCTS * LOOKS)
        self._step_seconds: deque[float] = deque(maxlen=LOOKS)
        self._waited: deque[float] = deque(maxlen=LOOKS)
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
            self._product_seconds.extend(_timed(self._product) for _ in range(PRODUCTS))
        self._step_seconds.append(row["step_seconds"])
        self._waited.append(row["data_seconds"] / row["step_seconds"] if row["step_seconds"] else 0.0)
        step_seconds = statistics.median(self._step_seconds)
        own = {
            "process": self._process,
            "host": socket.gethostname(),
            "step": step,
            "resident_bytes": row.get("device_bytes", row["resident_bytes"]),
            "peak_bytes": row.get("peak_device_bytes", row["peak_resident_bytes"]),
            "step_seconds": step_seconds,
            "data_seconds": statistics.median(self._waited) * step_seconds,
            "product_seconds": statistics.median(self._product_seconds) if self._product_seconds else None,
            "looks": len(self._step_seconds),
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
        number = straggler(rows)
        if number is not None and number not in self._named:
            self._named.add(number)
            self._say(straggler_words(rows))


def slowest_first(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the processes with `own_seconds`, the slowest first: what a step would take if all were as fast as it.

    That is the share of its own steps in which it waits for data, and the rest of a step in proportion to its matrix
    product beside the slowest one's. The step is the same for all of them, by the median of what they tell: one may
    tell about step 2 and another about step 6, whose times say nothing of the two processes.
    """
    step = statistics.median(row["step_seconds"] for row in rows)
    products = [row["product_seconds"] for row in rows if row["product_seconds"] is not None]
    slowest, waited = max(products, default=None), max(map(_waited_share, rows))

    def own(row: Mapping[str, Any]) -> float:
        pace = 1.0 if slowest is None or row["product_seconds"] is None else row["product_seconds"] / slowest
        return step * (_waited_share(row) + max(0.0, 1 - waited) * pace)

    return sorted(({**row, "own_seconds": own(row)} for row in rows), key=lambda row: -row["own_seconds"])


def _waited_share(row: Mapping[str, Any]) -> float:
    return row["data_seconds"] / row["step_seconds"] if row["step_seconds"] else 0.0


def straggler(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Returns the number of the process for which the others wait; None where they are about as fast.

    None, too, until each of them has told `LOOKS` times.

    Args:
        rows: From `slowest_first`.
    """
    if len(rows) < 2 or any(row["looks"] < LOOKS for row in rows):
        return None
    return rows[0]["process"] if rows[0]["own_seconds"] > STRAGGLES * _others_seconds(rows) else None


def _others_seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(row["own_seconds"] for row in rows[1:])


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
        f" in every step of {first['own_seconds']:.3g} s, and would take {_others_seconds(rows):.3g} by themselves;"
        " look at what else runs there"
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
