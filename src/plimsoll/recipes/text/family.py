"""Language models on streamed text: what this folder registers."""

from plimsoll.recipes.family import Family, Preset

FAMILY = Family(
    kinds={
        "stories": "plimsoll.recipes.text.recipe:Text",
    },
    presets={
        "stories": Preset(
            "plimsoll.recipes.text.recipe:Text",
            "a small language model on any text, streamed",
            needs="--dataset-id my-texts/ --memory 1GiB",
        ),
        "code": Preset(
            "plimsoll.recipes.text.recipe:code",
            "the same on Python's own source: needs no data, the demo",
        ),
    },
)
