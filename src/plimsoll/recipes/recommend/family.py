"""Next items of histories: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

HERE = "plimsoll.recipes.recommend"

FAMILY = Family(
    kinds={"recommend": f"{HERE}.recipe:Recommend"},
    presets={
        "recommend": Preset(f"{HERE}.recipe:Recommend", "the next item, by a small transformer or a frozen Llama"),
        "recommend-no-lm": Preset(f"{HERE}.presets:no_lm", "the same: a transformer that is learned along"),
        "recommend-debug": Preset(f"{HERE}.presets:debug", "for a look: 64 and 128 wide, 200 steps"),
        "recommend-gemma-2b": Preset(f"{HERE}.presets:gemma_2b", "a frozen Gemma 2B, histories of 256 items"),
        "recommend-llama-3.2-1b": Preset(
            f"{HERE}.presets:llama_3_2_1b", "a frozen Llama 3.2 1B, histories of 128 items"
        ),
        "recommend-tpu-optimized": Preset(f"{HERE}.presets:tpu_optimized", "a frozen Gemma 2B, histories of 128 items"),
    },
    prepares={
        "recommend": Preparation(
            purpose="who took which item after which: a folder",
            options=f"{HERE}.prepare_options:RecommendOptions",
            make=f"{HERE}.prepare:make",
            text=f"{HERE}.interaction_tables:prepared_text",
            example="plimsoll prepare recommend --interactions ratings.csv --out data/",
            clause="whose interactions are read from a file",
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
