"""A small language model, sized by a number of parameters.

    plimsoll plan  stories --memory 1GiB
    plimsoll train stories --dataset-id my-texts/ --memory 1GiB --run runs/mine

Defaults are those of the published guide for this recipe, where these are sound; docs/guide-tinystories.md
translates its commands.
"""

from dataclasses import dataclass
from typing import ClassVar

from plimsoll.errors import RecipeError
from plimsoll.levers.records.blocks import attention_blocks_of
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import inner_width, sized, usual_vocabulary
from plimsoll.options import PositiveCount, PositiveInt
from plimsoll.recipes.parts import Hints, Model, Needs, Uses
from plimsoll.recipes.specs import TokenSpec
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import Compute, Task

TARGET_PARAMS = 1_000_000
LEVERS = (
    "precision",
    "activations",
    "unroll",
    "remat",
    "remat_offload",
    "loss_chunk",
    "attention_chunk",
    "layerwise",
)


@dataclass(frozen=True, kw_only=True)
class Decoder(Model):
    """A Llama-like decoder, by its number of parameters or by width, layers and heads."""

    name = "decoder"
    reads = TokenSpec
    uses = Uses(
        verbs={
            "sample": Verb(answer="plimsoll.recipes.writing:sample"),
            "export": Verb(answer="plimsoll.recipes.text.export:export"),
        },
        shown=(Shown(words="what it writes", make="plimsoll.recipes.writing:texts", command="plimsoll sample {run}"),),
    )
    gives_way: ClassVar = {
        "target_params": {"width": None, "layers": None, "heads": None},
        "width": {"target_params": TARGET_PARAMS},
        "layers": {"target_params": TARGET_PARAMS},
        "heads": {"target_params": TARGET_PARAMS},
    }

    target_params: PositiveCount = TARGET_PARAMS
    """Approximate number of parameters; width, layers and heads follow from it."""
    width: PositiveInt | None = None
    """Width of the hidden states, a multiple of --heads. Needs --layers and --heads, too. By default it follows from
    --target-params."""
    layers: PositiveInt | None = None
    """Number of transformer blocks. By default it follows from --target-params."""
    heads: PositiveInt | None = None
    """Number of attention heads. By default it follows from --target-params."""
    tied: bool = True
    """Use the token embedding's weights for the output layer, too."""

    def check_options(self) -> None:
        sizes = [self.width, self.layers, self.heads]
        if any(sizes) and not all(sizes):
            raise RecipeError(
                f"--width, --layers and --heads set the model's shape together, got {self.width}, {self.layers} and"
                f" {self.heads}: give all three, or --target-params alone"
            )
        if all(sizes) and self.target_params != TARGET_PARAMS:
            raise RecipeError(
                f"--target-params {self.target_params:,} beside a shape of --width {self.width}, --layers {self.layers}"
                f" and --heads {self.heads}: leave one of the two out. In Python, plimsoll.preset(NAME,"
                f" target_params={self.target_params}) gives up the preset's shape"
            )

    def needs(self) -> Needs:
        parameters = self.target_params
        if self.width and self.layers:
            parameters = 12 * self.layers * self.width**2
        return Needs(vocabulary=usual_vocabulary(parameters))

    def shape(self, spec: TokenSpec) -> DecoderShape:
        """Returns the sizes of the network."""
        if not (self.width and self.layers and self.heads):
            return sized(self.target_params, vocab=spec.vocab, tied=self.tied)
        return DecoderShape(
            vocab=spec.vocab,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner=inner_width(self.width),
            tied=self.tied,
        )

    def hints(self, spec: TokenSpec) -> Hints:
        return Hints(
            levers=LEVERS,
            loss_chunks=(256,),
            attention_chunks=attention_blocks_of(spec.length),
            head_width=self.shape(spec).head_width,
        )

    def task(self, spec: TokenSpec, compute: Compute) -> Task:
        from plimsoll.models.language import NextToken

        return NextToken(self.shape(spec), compute)
