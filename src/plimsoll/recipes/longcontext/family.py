"""Language models of linear recurrences on packed text: what this folder registers."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

HERE = "plimsoll.recipes.longcontext"
PRESETS = (
    ("longcontext", "recipe:LongContext", "a language model of linear recurrences on packed text, for a laptop"),
    ("longcontext-nano", "presets:nano", "published size: width 512, 4 layers"),
    ("longcontext-micro", "presets:micro", "published size: width 768, 8 layers"),
    ("longcontext-tiny", "presets:tiny", "published size: width 512, 6 layers"),
    ("longcontext-small", "presets:small", "published size: width 1,024, 12 layers"),
    ("longcontext-small-32k", "presets:small_32k", "published size: 123M, windows of 32,768 tokens"),
    ("longcontext-medium-32k", "presets:medium_32k", "published size: width 1,536, 16 layers, 32,768 tokens"),
    ("longcontext-large-32k", "presets:large_32k", "published size: width 2,048, 24 layers, 32,768 tokens"),
)
"""Name, what makes it, and the line about it."""
OFTEN = ("data", "seq_len", "width", "layers", "learning_rate", "epochs", "batch_size")

FAMILY = Family(
    kinds={"longcontext": f"{HERE}.recipe:LongContext"},
    presets={name: Preset(f"{HERE}.{made}", purpose, "--data packed/", OFTEN) for name, made, purpose in PRESETS},
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
