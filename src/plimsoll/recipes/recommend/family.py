"""Next items of histories: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

HERE = "plimsoll.recipes.recommend"
MEMORY, GEMMA, LLAMA = "--memory 1GiB", "--pretrained gemma/", "--pretrained llama/"
PRESETS = (
    ("recommend", "recipe:Recommend", "the next item, by a small transformer or a frozen Llama", MEMORY),
    ("recommend-no-lm", "presets:no_lm", "the same: a transformer that is learned along", MEMORY),
    ("recommend-debug", "presets:debug", "for a look: 64 and 128 wide, 200 steps", MEMORY),
    ("recommend-gemma-2b", "presets:gemma_2b", "a frozen Gemma 2B, histories of 256 items", GEMMA),
    ("recommend-llama-3.2-1b", "presets:llama_3_2_1b", "a frozen Llama 3.2 1B, histories of 128 items", LLAMA),
    ("recommend-tpu-optimized", "presets:tpu_optimized", "a frozen Gemma 2B, histories of 128 items", GEMMA),
)
"""Name, what makes it, the line about it, and an option of its example: the weights, where it needs some."""

OFTEN = ("data", "pretrained", "epochs", "batch_size", "seq_len", "learning_rate", "num_items")

FAMILY = Family(
    kinds={"recommend": f"{HERE}.recipe:Recommend"},
    presets={
        name: Preset(f"{HERE}.{made}", purpose, f"--data interactions/ {more}", OFTEN)
        for name, made, purpose, more in PRESETS
    },
    prepares={
        "recommend": Preparation(
            purpose="who took which item after which: a folder",
            options=f"{HERE}.prepare_options:RecommendOptions",
            make=f"{HERE}.prepare:make",
            text=f"{HERE}.interaction_tables:prepared_text",
            example="plimsoll prepare recommend --interactions ratings.csv --out interactions/",
            own_process=True,
        ),
    },
    inspects=(
        Inspection(
            recognises=f"{HERE}.interactions:is_interactions",
            describe=f"{HERE}.interaction_tables:describe_interactions",
            table=f"{HERE}.interaction_tables:interactions_table",
        ),
    ),
)
