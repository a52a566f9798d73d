"""`--profile N`: a trace of N steps for TensorBoard or Perfetto, and a table of the longest operations."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import jax

SKIPPED = 2
"""Number of steps before the trace begins. The first steps are slower, because they touch their memory first."""
SHOWN, PRINTED = 20, 8
"""Number of operations in the summary file, and number of them that the run prints."""


class Profile:
    """Recorder of a trace of `steps` steps; records nothing for 0."""

    def __init__(self, folder: Path, *, steps: int) -> None:
        self.folder, self._steps, self._seen, self._tracing = folder, steps, 0, False

    def step_ended(self) -> str | None:
        """Counts a step, and begins or ends the trace. If it ends, returns the first lines of the summary."""
        self._seen += 1
        if self._steps and self._seen == SKIPPED:
            jax.profiler.start_trace(str(self.folder), create_perfetto_trace=True)
            self._tracing = True
        if self._tracing and self._seen == SKIPPED + self._steps:
            return self.close()
        return None

    def close(self) -> str | None:
        """Ends a running trace, and writes `summary.txt` beside it. Returns its first lines; None without a trace."""
        if not self._tracing:
            return None
        self._tracing = False
        jax.profiler.stop_trace()
        summary = summarise(self.folder, steps=min(self._steps, self._seen - SKIPPED))
        (self.folder / "summary.txt").write_text(summary)
        head = summary.splitlines()[: 2 + PRINTED]
        return "\n".join([f"profile: {head[0]}; all of them in {self.folder / 'summary.txt'}", *head[1:]])


def summarise(folder: Path, *, steps: int) -> str:
    """Returns a table of the longest operations in the newest trace: milliseconds per step, share of time, and calls.

    Args:
        folder: Folder of the traces.
        steps: Number of traced steps.
    """
    trace = max(folder.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            spent[event["name"]] += event["dur"]
            count[event["name"]] += 1
    total = sum(spent.values())
    lines = [f"{steps} steps traced; time in the longest operations, summed over threads (microseconds as traced)", ""]
    for name, micros in spent.most_common(SHOWN):
        lines.append(
            f"{micros / 1000 / max(1, steps):10.2f} ms a step {micros / max(1, total):6.1%} {count[name]:7d}x  {name}"
        )
    return "\n".join(lines) + "\n"
