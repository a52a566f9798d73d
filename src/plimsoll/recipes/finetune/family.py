"""Fine-tuning of published language models: what this folder registers."""

from plimsoll.recipes.family import Family

FAMILY = Family(
    parts={
        "model": {"pretrained": "plimsoll.recipes.finetune.model:Pretrained"},
        "data": {"chat": "plimsoll.recipes.finetune.data:Chat"},
    },
)
