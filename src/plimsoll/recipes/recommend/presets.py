"""Complete recipes of recommendation: the guide's, where they were sound, and the one without a published model.

Each is called without arguments. A preset with a language model names its id on Hugging Face; planning needs no
weights. Their steps are of 32 users, where the guide's are of 8 or 16, so that the 32
devices of a TPU v4-64 have one each.
"""

from functools import partial

from plimsoll.recipes.recommend.recipe import Recommend

no_lm = Recommend
"""The default by its own name."""

debug = partial(
    Recommend,
    item_embedding_dim=64,
    width=128,
    seq_len=32,
    batch_size=4,
    steps=200,
    default_warmup_steps=50,
    learning_rate=1e-3,
)
"""Every code path in a minute."""

_published = partial(
    Recommend,
    item_embedding_dim=384,
    adapter_inner=1536,
    seq_len=128,
    batch_size=16,
    learning_rate=1e-4,
    steps=10_000,
    default_warmup_steps=1000,
    dropout=0.0,
)
"""The port's settings of a frozen model."""

llama_3_2_1b = partial(
    _published,
    pretrained="meta-llama/Llama-3.2-1B",
    gradient_accumulation_steps=2,
    item_embedding_dim=512,
    steps=15_000,
    default_warmup_steps=1500,
)
_gemma_2b = partial(_published, pretrained="google/gemma-2b", learning_rate=5e-5)
gemma_2b = partial(_gemma_2b, seq_len=256, batch_size=8, gradient_accumulation_steps=4)
tpu_optimized = partial(_gemma_2b, batch_size=2, gradient_accumulation_steps=16)
"""The guide's users two at a time. The planner may find a better split of the 32 of a step."""
