"""Complete recipes of long contexts, in the published sizes: width, layers, states, windows and batches of the guide.

Each is called without arguments. Their counts of parameters are with GPT-2's vocabulary of 50,257 and an output layer
tied to the embedding.
"""

from functools import partial

from plimsoll.recipes.longcontext.recipe import LongContext

nano = partial(LongContext, width=512, layers=4, states=64, seq_len=2048, batch_size=32)
"""34.8M parameters, 9.1M besides the embedding."""
micro = partial(LongContext, width=768, layers=8, states=96, seq_len=2048, batch_size=32)
tiny = partial(LongContext, width=512, layers=6, states=64, seq_len=2048, batch_size=32)
small = partial(LongContext, width=1024, layers=12, states=128, seq_len=2048, batch_size=32)

_long = partial(LongContext, r_min=0.99, seq_len=32_768, batch_size=4, gradient_accumulation_steps=4)
"""States that begin slower than the default: a tenth of them reach beyond 1,000 tokens, with 0.9 a hundredth. 16
windows are 524,288 tokens a step."""

small_32k = partial(_long, width=1024, layers=8, states=128)
"""The guide's 123M, without a table of positions."""
medium_32k = partial(_long, width=1536, layers=16, states=192)
large_32k = partial(_long, width=2048, layers=24, states=256)
