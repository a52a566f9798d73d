"""Next items of histories: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

FAMILY = Family(
    kinds={
        "recommend": "plimsoll.recipes.recommend.recipe:Recommend",
    },
    presets={
        "recommend": Preset(
            "plimsoll.recipes.recommend.recipe:Recommend",
            "the next item, by a small transformer or a frozen Llama",
        ),
        "recommend-no-lm": Preset(
            "plimsoll.recipes.recommend.presets:no_lm",
            "the same: a transformer that is learned along",
        ),
        "recommend-debug": Preset(
            "plimsoll.recipes.recommend.presets:debug",
            "for a look: 64 and 128 wide, 200 steps",
        ),
        "recommend-gemma-2b": Preset(
            "plimsoll.recipes.recommend.presets:gemma_2b",
            "a frozen Gemma 2B, histories of 256 items",
        ),
        "recommend-llama-3.2-1b": Preset(
            "plimsoll.recipes.recommend.presets:llama_3_2_1b",
            "a frozen Llama 3.2 1B, histories of 128 items",
        ),
        "recommend-tpu-optimized": Preset(
            "plimsoll.recipes.recommend.presets:tpu_optimized",
            "a frozen Gemma 2B, histories of 128 items",
        ),
    },
    prepares={
        "recommend": Preparation(
            purpose="who took which item after which: a folder",
            options="plimsoll.recipes.recommend.prepare_options:RecommendOptions",
            make="plimsoll.recipes.recommend.prepare:make",
            text="plimsoll.recipes.recommend.interaction_tables:prepared_text",
            example="plimsoll prepare recommend --interactions ratings.csv --out data/",
            clause="whose interactions are read from a file",
            own_process=True,
        ),
    },
    inspects=(
        Inspection(
            recognises="plimsoll.recipes.recommend.interactions:is_interactions",
            describe="plimsoll.recipes.recommend.survey:describe_interactions",
            table="plimsoll.recipes.recommend.interaction_tables:interactions_table",
        ),
    ),
)
