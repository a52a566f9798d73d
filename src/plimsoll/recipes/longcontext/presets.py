"""Complete recipes of long contexts, in the published sizes: width, layers, states, windows and batches of the guide.

Their counts of parameters are with GPT-2's vocabulary of 50,257 and an output layer tied to the embedding.
"""

from plimsoll.recipes.longcontext.recipe import LongContext


def nano() -> LongContext:
    """Returns a model of 34.8M parameters, 9.1M besides the embedding."""
    return LongContext(width=512, layers=4, states=64, seq_len=2048, batch_size=32)


def micro() -> LongContext:
    return LongContext(width=768, layers=8, states=96, seq_len=2048, batch_size=32)


def tiny() -> LongContext:
    return LongContext(width=512, layers=6, states=64, seq_len=2048, batch_size=32)


def small() -> LongContext:
    return LongContext(width=1024, layers=12, states=128, seq_len=2048, batch_size=32)


def small_32k() -> LongContext:
    """Returns the guide's 123M, without a table of positions. 16 windows are 524,288 tokens a step."""
    return _long(width=1024, layers=8, states=128)


def medium_32k() -> LongContext:
    return _long(width=1536, layers=16, states=192)


def large_32k() -> LongContext:
    return _long(width=2048, layers=24, states=256)


def _long(*, width: int, layers: int, states: int) -> LongContext:
    """States that begin slower than the default: a tenth of them reach beyond 1,000 tokens, with 0.9 a hundredth."""
    return LongContext(
        r_min=0.99,
        width=width,
        layers=layers,
        states=states,
        seq_len=32_768,
        batch_size=4,
        gradient_accumulation_steps=4,
    )
