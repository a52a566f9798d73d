"""Next items of histories: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation

HERE = "plimsoll.recipes.recommend"


FAMILY = Family(
    parts={
        "model": {"items": "plimsoll.recipes.recommend.model:Items"},
        "data": {"interactions": "plimsoll.recipes.recommend.data:Interactions"},
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
