"""Complete recipes of recommendation: the guide's, where they were sound, and the one without a published model.

A preset with a language model names its shape, which is enough to plan with: `--pretrained FOLDER` names its weights.
Their steps are of 32 users, where the guide's are of 8 or 16, so that the 32 devices of a TPU v4-64 have one each.
"""

from plimsoll.recipes.recommend.recipe import Recommend


def no_lm() -> Recommend:
    """The default by its own name."""
    return Recommend()


def debug() -> Recommend:
    """Every code path in a minute."""
    return Recommend(
        item_embedding_dim=64,
        width=128,
        seq_len=32,
        batch_size=4,
        steps=200,
        warmup_steps=50,
        learning_rate=1e-3,
    )


def gemma_2b() -> Recommend:
    return _published("gemma-2b", seq_len=256, batch_size=8, gradient_accumulation_steps=4, learning_rate=5e-5)


def llama_3_2_1b() -> Recommend:
    return _published(
        "llama-3.2-1b", gradient_accumulation_steps=2, item_embedding_dim=512, steps=15_000, warmup_steps=1500
    )


def tpu_optimized() -> Recommend:
    """The guide's users two at a time. The planner may find a better split of the 32 of a step."""
    return _published("gemma-2b", batch_size=2, gradient_accumulation_steps=16, learning_rate=5e-5)


def _published(
    name: str,
    *,
    seq_len: int = 128,
    batch_size: int = 16,
    gradient_accumulation_steps: int = 1,
    item_embedding_dim: int = 384,
    learning_rate: float = 1e-4,
    steps: int = 10_000,
    warmup_steps: int = 1000,
) -> Recommend:
    """The port's settings of a frozen model."""
    return Recommend(
        pretrained=name,
        item_embedding_dim=item_embedding_dim,
        adapter_inner=1536,
        seq_len=seq_len,
        batch_size=batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        learning_rate=learning_rate,
        steps=steps,
        warmup_steps=warmup_steps,
        dropout=0.0,
    )
