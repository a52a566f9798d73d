"""Language models of linear recurrences on packed text: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation

HERE = "plimsoll.recipes.longcontext"

FAMILY = Family(
    parts={
        "model": {"eigen": "plimsoll.recipes.longcontext.model:Eigen"},
        "data": {"packed": "plimsoll.recipes.longcontext.data:Packed"},
    },
    prepares={
        "longcontext": Preparation(
            purpose="text, tokenised once: a folder of ids",
            options=f"{HERE}.prepare:TextOptions",
            make=f"{HERE}.prepare:make",
            text=f"{HERE}.prepare:prepared_text",
            example="plimsoll prepare longcontext --dataset-id my-texts/ --out packed/",
        ),
    },
    inspects=(
        Inspection(
            recognises="plimsoll.data.packed.packed:is_packed",
            describe="plimsoll.data.packed.packed:describe_packed",
            table="plimsoll.report.data_tables:packed_table",
        ),
    ),
)
