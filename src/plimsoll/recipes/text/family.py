"""Language models on streamed text: what this folder registers."""

from plimsoll.recipes.family import Family

FAMILY = Family(
    parts={
        "decoder": "plimsoll.recipes.text.model:Decoder",
        "text": "plimsoll.recipes.text.data:Text",
    },
)
