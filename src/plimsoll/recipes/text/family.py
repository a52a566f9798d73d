"""Language models on streamed text: what this folder registers."""

from plimsoll.recipes.family import Family

FAMILY = Family(
    parts={
        "model": {"decoder": "plimsoll.recipes.text.model:Decoder"},
        "data": {"text": "plimsoll.recipes.text.data:Text"},
    },
)
