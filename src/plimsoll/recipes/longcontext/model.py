"""A language model that reads 32,768 tokens at the price per token of 2,048: linear recurrences over text.

    plimsoll prepare longcontext --dataset-id python:standard-library --out packed/
    plimsoll train longcontext --data packed/ --memory 1GiB --run runs/long
    plimsoll plan  longcontext-small-32k --chip h200

Defaults are a model for a laptop; docs/longcontext.md says what to expect.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from plimsoll.errors import RecipeError
from plimsoll.levers.records.blocks import attention_blocks_of
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import inner_width, usual_heads, usual_vocabulary
from plimsoll.options import Interval, NonNegativeCount, NonNegativeInt, PositiveInt, Share
from plimsoll.recipes.longcontext.positions import BY_POSITION, PREFIX, by_position
from plimsoll.recipes.parts import Hints, Model, Needs, Uses
from plimsoll.recipes.specs import Spec, TokenSpec
from plimsoll.recipes.verbs import Shown, Verb

LEVERS = (
    "precision",
    "activations",
    "unroll",
    "remat",
    "remat_offload",
    "loss_chunk",
    "layerwise",
)


def reported(metrics: Mapping[str, float], spec: Spec) -> dict[str, Any]:
    """Returns the mean metrics, with the losses by position as a table."""
    assert isinstance(spec, TokenSpec)
    rest = {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}
    return rest | {BY_POSITION: by_position(metrics, spec.length)}


def exhibits(metrics: Mapping[str, Any], spec: Spec) -> list[dict[str, Any]]:
    """Returns a plot of the loss by position."""
    assert isinstance(spec, TokenSpec)
    losses = by_position(metrics, spec.length)
    if len(losses) < 2:
        return []
    plot = {
        "kind": "curves",
        "title": "Loss by position",
        "caption": "Does a token gain from text far before it? It does at positions where the curve still falls. Means"
        " over stretches of positions, at the last evaluation.",
        "x_label": "position in the window, counted from 1 (logarithmic)",
        "y_label": "loss, nats per token",
        "x": [int(stretch.split(" to ")[0]) + 1 for stretch in losses],
        "y": {"held-out documents": list(losses.values())},
        "logarithmic": True,
    }
    return [plot]


@dataclass(frozen=True, kw_only=True)
class Eigen(Model):
    """Diagonal complex linear recurrences between SwiGLUs, without a table of positions."""

    name = "eigen"
    reads = TokenSpec
    implementation = "plimsoll.recipes.longcontext.task:LongTokens"
    uses = Uses(
        verbs={
            "evaluate": Verb(text="plimsoll.recipes.longcontext.tables:evaluation"),
            "sample": Verb(answer="plimsoll.recipes.longcontext.streaming:sample"),
        },
        shown=(
            Shown(
                words="what it writes",
                make="plimsoll.recipes.longcontext.streaming:shown",
                command="plimsoll sample {run}",
            ),
        ),
        reported=reported,
        exhibits=exhibits,
    )

    width: PositiveInt = 128
    """Width of the hidden states."""
    layers: PositiveInt = 4
    """Number of blocks, each a recurrence (or attention) and a SwiGLU."""
    states: PositiveInt = 64
    """Complex numbers in the recurrent state of a layer."""
    inner: PositiveInt | None = None
    """Width of the SwiGLU. By default 7/3 of --width: with the recurrence's gate it costs as much as a feed-forward
    layer of 4 x --width without gates."""
    tied: bool = True
    """Use the token embedding's weights for the output layer, too."""
    r_min: Share = 0.9
    """Least share of a recurrent state that remains after a token, at initialisation; see --r-max."""
    r_max: Share = 0.9999
    """Largest share of a recurrent state that remains after a token, at initialisation: after n tokens r^n remains. r^2
    is spread evenly from --r-min^2 to --r-max^2."""
    max_phase: Annotated[float, Interval(gt=0, le=2 * math.pi)] = 2 * math.pi
    """Largest angle, in radians, by which a token turns a state at initialisation; angles are spread evenly from 0."""
    attention_every: NonNegativeInt = 0
    """Number of layers in a group whose last one is attention instead of a recurrence; 0 for no attention."""
    attention_window: NonNegativeCount = 0
    """Tokens that an attention layer sees, with the current one; 0 for all so far, whose cost grows with --seq-len."""
    heads: PositiveInt | None = None
    """Number of heads in attention layers. By default heads of width 64, or of 32 or 128 if only these divide --width,
    else one."""
    chunk_size: PositiveInt = 256
    """Tokens of a chunk of the recurrence. Affects only speed and memory."""

    def check_options(self) -> None:
        _ = self.shape(vocab=1)  # its own checks
        if self.r_min >= self.r_max:
            raise RecipeError(
                f"--r-min {self.r_min:g} and --r-max {self.r_max:g} bound the share of a state that remains after a"
                " token: the second must be above the first"
            )
        if not self.attention_every and (self.heads or self.attention_window):
            raise RecipeError(
                "--heads and --attention-window need attention layers, and there are none: give --attention-every,"
                " or leave them out"
            )
        if self.attention_every and self.layers % self.attention_every:
            groups = max(1, self.layers // self.attention_every)
            raise RecipeError(
                f"--layers {self.layers} are no whole number of groups of --attention-every {self.attention_every}:"
                f" take {groups * self.attention_every} layers"
            )

    def shape(self, *, vocab: int) -> DecoderShape:
        """Returns the sizes of the network for `vocab` different tokens."""
        return DecoderShape(
            vocab=vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads or usual_heads(self.width),
            inner=self.inner or inner_width(self.width, thirds=7),
            tied=self.tied,
            window=self.attention_window,
        )

    def needs(self) -> Needs:
        return Needs(vocabulary=usual_vocabulary(12 * self.layers * self.width**2))

    def hints(self, spec: TokenSpec) -> Hints:
        attends = bool(self.attention_every)
        return Hints(
            levers=(*LEVERS, "attention_chunk") if attends else LEVERS,
            loss_chunks=(2048, 256),
            loss_whole=False,
            attention_chunks=attention_blocks_of(spec.length) if attends else (),
        )
