"""Fine-tuning of published language models: what this folder registers."""

from plimsoll.recipes.family import Family, Preset

FAMILY = Family(
    kinds={"finetune": "plimsoll.recipes.finetune.recipe:Finetune"},
    presets={
        "finetune": Preset(
            "plimsoll.recipes.finetune.recipe:Finetune",
            "a published Llama, Mistral, Qwen or Gemma on chats, pairs or texts, by LoRA or whole",
            example="--dataset-id chats.jsonl --frozen-bits 4",
            often=("frozen_bits", "pretrained", "dataset_id", "seq_len", "lora_rank", "learning_rate", "epochs"),
        ),
    },
)
