"""What this package registers. It holds text only, so that listing recipes imports nothing heavy."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

FAMILY = Family(
    kinds={"waves": "plimsoll_waves.recipe:Waves"},
    presets={
        "waves": Preset("the frequency of a noisy wave", make="plimsoll_waves.recipe:Waves"),
        "waves-wide": Preset("the same, 256 wide", make="plimsoll_waves.recipe:wide"),
    },
    prepares={
        "waves": Preparation(
            purpose="noisy waves and their frequencies: one .npz file",
            options="plimsoll_waves.data:WavesOptions",
            make="plimsoll_waves.data:make",
            text="plimsoll_waves.data:prepared_text",
            example="plimsoll prepare waves --out waves.npz",
        )
    },
    inspects=(
        Inspection(
            recognises="plimsoll_waves.data:is_waves",
            describe="plimsoll_waves.data:describe",
            table="plimsoll_waves.data:table",
        ),
    ),
)
