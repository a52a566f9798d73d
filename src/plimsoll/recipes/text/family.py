"""Language models on streamed text: what this folder registers."""

from plimsoll.recipes.family import Family, Preset

OFTEN = ("dataset_id", "target_params", "seq_len", "epochs", "steps", "batch_size", "learning_rate")

FAMILY = Family(
    kinds={
        "stories": "plimsoll.recipes.text.recipe:Text",
    },
    presets={
        "stories": Preset(
            "plimsoll.recipes.text.recipe:Text",
            "a small language model on any text, streamed",
            example="--dataset-id my-texts/ --memory 1GiB",
            often=OFTEN,
        ),
        "code": Preset(
            "plimsoll.recipes.text.recipe:code",
            "the same on Python's own source: needs no data, the demo",
            example="--memory 768MiB",
            often=OFTEN,
        ),
    },
)
