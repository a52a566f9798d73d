"""What this package registers. It holds text only, so that listing recipes imports nothing heavy."""

from plimsoll.recipes.family import Family, Inspection, Preparation, Preset

FAMILY = Family(
    parts={"recipe": {"waves": "plimsoll_waves.recipe:Waves"}},
    presets={
        "waves": Preset("the frequency of a noisy wave", parts={"recipe": "waves"}),
        "waves-wide": Preset("the same, 256 wide", parts={"recipe": "waves"}, options={"width": 256}),
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
