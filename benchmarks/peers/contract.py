"""What each side of a text comparison is given, and the one JSON line it must print.

Standard library only: it is imported in the peer's environment and in ours.

Update n, counted from 0, uses the learning rate `peak * n / warmup` while n < warmup, so the first update
has rate 0; then a cosine from the peak down to `floor * peak` at n = steps. A step's loss is the mean
cross-entropy, in nats, over every predicted token of its effective batch, before the update.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from peers.programs import resident_bytes

UNTIMED_STEPS = 20
"""Left out of the timing: compilation, first touch of memory, warm caches."""
FINAL_STEPS = 20
"""The final loss is the mean of this many last steps: one step's batch is too noisy to compare."""

ORDER = (
    "npy, int (steps, batch * accumulation): window numbers; "
    "window w reads tokens[w*seq : w*seq+seq] and predicts tokens[w*seq+1 : w*seq+seq+1]"
)
CONFIG = (
    "JSON: hidden_size, intermediate_size, layers, heads, vocab_size, seq_len, tie_embeddings, rope_theta, rms_norm_eps"
)
DECAY = "what decays: matrices (the embedding too, the norms not), or every parameter"


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments both sides take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tokens", type=Path, required=True, help="npy, int32 (tokens,): the text")
    parser.add_argument("--order", type=Path, required=True, help=ORDER)
    parser.add_argument("--config", type=Path, required=True, help=CONFIG)
    parser.add_argument("--weights", type=Path, help="npz, initial weights named and shaped as in LlamaForCausalLM")
    parser.add_argument("--batch-size", type=int, default=16, help="windows of one forward pass")
    parser.add_argument("--accumulation", type=int, default=1, help="forward passes of one update")
    parser.add_argument("--steps", type=int, default=600, help="updates; also the length of the schedule")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak")
    parser.add_argument("--warmup", type=int, default=60, help="updates")
    parser.add_argument("--floor", type=float, default=0.1, help="last learning rate over the peak")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="decoupled, times the learning rate")
    parser.add_argument("--decay", choices=("matrices", "all"), default="matrices", help=DECAY)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--epsilon", type=float, default=1e-8)
    parser.add_argument("--clip", type=float, default=1.0, help="global gradient norm; 0 for no clipping")
    parser.add_argument("--bf16", action="store_true", help="dots in bfloat16; weights stay float32")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    return parser


def result_line(
    *,
    losses: Sequence[float],
    step_seconds: Sequence[float],
    tokens_per_step: int,
    versions: dict[str, str],
    peak_bytes: int | None = None,
) -> str:
    """The line a side prints last on standard output. Both sequences have one entry per step.

    `step_seconds` run from the end of one step to the end of the next: fetching data and logging count.
    `peak_bytes` is the VmHWM of the process that trained, where that is not the one that calls this.
    """
    timed = step_seconds[min(UNTIMED_STEPS, len(step_seconds) // 3) :]  # short dry runs are timed as well
    step_median = statistics.median(timed)
    result = {
        "tokens_per_second": tokens_per_step / step_median,
        "tokens_per_second_mean": tokens_per_step / statistics.fmean(timed),
        "step_seconds": step_median,
        "steps_timed": len(timed),
        "peak_resident_bytes": resident_bytes("VmHWM") if peak_bytes is None else peak_bytes,
        "first_loss": losses[0],
        "final_loss": statistics.fmean(losses[-FINAL_STEPS:]),
        "losses": list(losses),
        "versions": versions,
    }
    return json.dumps(result)
