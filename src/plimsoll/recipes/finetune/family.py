"""Fine-tuning of published language models: what this folder registers."""

from plimsoll.recipes.family import Family, Preset

FAMILY = Family(
    kinds={"finetune": "plimsoll.recipes.finetune.recipe:Finetune"},
    presets={
        "finetune": Preset(
            "plimsoll.recipes.finetune.recipe:Finetune",
            "a published Llama, Mistral, Qwen or Gemma on chats, pairs or texts, by LoRA or whole",
            needs="--dataset-id chats.jsonl --memory 1GiB",
        ),
    },
)
