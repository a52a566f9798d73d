"""Controllers imitated from windows of states: what this folder registers."""

from plimsoll.recipes.family import Family, Preparation

FAMILY = Family(
    parts={
        "model": {"imitator": "plimsoll.recipes.control.model:Imitator"},
        "data": {"windows": "plimsoll.recipes.control.data:Windows"},
    },
    prepares={
        "control": Preparation(
            purpose="windows of 35 controlled systems: one HDF5 file",
            options="plimsoll.recipes.control.prepare_options:ControlOptions",
            make="plimsoll.recipes.control.prepare:make",
            text="plimsoll.recipes.control.tables:prepared_text",
            example="plimsoll prepare control --samples 400k --out windows.h5",
            own_process=True,
        ),
    },
)
