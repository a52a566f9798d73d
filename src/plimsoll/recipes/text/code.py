"""A language model that learns to write Python, from the source files that came with Python itself.

    plimsoll train code --memory 768MiB

Nothing to download: the text is the standard library, found through `sysconfig`. What to expect on two cores:
docs/log.md, "The demo".
"""

from plimsoll.data import STANDARD_LIBRARY
from plimsoll.recipes.text.recipe import Text


def code() -> Text:
    """Returns the recipe of the demo: 128 wide, 4 layers, 1.3M parameters, about three minutes on two cores."""
    return Text(
        dataset_id=STANDARD_LIBRARY,
        width=128,
        layers=4,
        heads=4,
        vocab_size=4_096,
        batch_size=16,
        gradient_accumulation_steps=4,
        steps=600,
        learning_rate=4e-3,
        weight_decay=0.1,
        beta2=0.99,
        shuffle_buffer_size=24_000,
        validation_tokens=50_000,
    )
