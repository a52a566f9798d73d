"""Table of the loss by position, which shows the gain from text thousands of tokens before."""

from collections.abc import Mapping
from typing import Any

from plimsoll.recipes.longcontext.positions import BY_POSITION
from plimsoll.report.layout import UNKNOWN, columns
from plimsoll.report.summary import evaluation_text


def evaluation(answer: Mapping[str, Any]) -> str:
    """Returns the text that `plimsoll evaluate` prints."""
    means = {name: value for name, value in answer.items() if name != BY_POSITION}
    return f"{evaluation_text(means)}\n\n{positions_table(answer[BY_POSITION])}"


def positions_table(losses: Mapping[str, float]) -> str:
    """Returns a table of the loss by position.

    Args:
        losses: Nats per token by stretch of positions, like "64 to 127", in order.
    """
    rows = [("positions", "nats", "change")]
    before = None
    for stretch, loss in losses.items():
        change = UNKNOWN if before is None else f"{loss - before:+.4f}"
        rows.append((stretch, f"{loss:.4f}", change))
        before = loss
    return "\n".join(["  loss by position in the window", *columns(rows, align="rrr", indent=4)])
