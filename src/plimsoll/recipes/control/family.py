"""Controllers imitated from windows of states: what this folder registers."""

from plimsoll.recipes.family import Family, Preparation, Preset

FAMILY = Family(
    kinds={
        "control": "plimsoll.recipes.control.recipe:Control",
    },
    presets={
        "control": Preset(
            "plimsoll.recipes.control.recipe:Control",
            "optimal controllers imitated from windows of states in HDF5",
            example="--data windows.h5 --memory 1GiB",
            often=("data", "epochs", "batch_size", "width", "layers", "learning_rate", "validation_rows"),
        ),
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
