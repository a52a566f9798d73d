"""Metrics of an evaluation, as `plimsoll evaluate` prints them. Pure: an answer in, text out."""

from collections.abc import Mapping
from typing import Any


def evaluation_text(answer: Mapping[str, Any]) -> str:
    """Returns a line for each metric; a metric that is a mapping gets a line for each of its parts."""
    metrics = {name: value for name, value in answer.items() if name not in ("run", "step", "note")}
    width = max((len(name) for name, value in metrics.items() if not isinstance(value, Mapping)), default=0) + 2
    lines = [f"{answer['run']} at step {answer['step']:,}, on its held-out set"]
    lines += [answer["note"]] if answer.get("note") else []
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            lines += ["", f"  {name}", *(f"    {part:<28}{number:8.4f}" for part, number in value.items())]
        else:
            lines.append(f"  {name:<{width}}{f'{value:,}' if isinstance(value, int) else f'{value:.4f}'}")
    return "\n".join(lines)
