"""One example of every command, shown in its `--help`; tests/docs reads each of them as if it was typed."""

from __future__ import annotations

EXAMPLES = {
    "plan": "plimsoll plan {recipe} --memory 1GiB",
    "train": "plimsoll train {recipe} --memory 1GiB --run runs/mine",
    "ladder": "plimsoll ladder {recipe} --rungs micro-batch remat bfloat16",
    "evaluate": "plimsoll evaluate runs/mine",
    "sample": 'plimsoll sample runs/mine --prompt "Once upon a time"',
    "export": "plimsoll export runs/mine --merged exported/",
    "solve": 'plimsoll solve runs/four "21.. .3.. .4.2 ...3"',
    "rank": "plimsoll rank runs/mine --history 12,88,401",
    "report": "plimsoll report runs/mine",
    "inspect": "plimsoll inspect my-texts/",
    "fingerprint": "plimsoll fingerprint runs/mine",
    "runs": "plimsoll runs runs/compared",
    "recipes": "plimsoll recipes --json",
    "chips": "plimsoll chips h200",
    "doctor": "plimsoll doctor",
}
OF_PRETRAINED = {
    "evaluate": "plimsoll evaluate --pretrained Llama-3.2-1B/ --text book.txt",
    "sample": 'plimsoll sample --pretrained Llama-3.2-1B/ --prompt "Once upon a time"',
}


def example(program: str) -> str:
    """Returns the example of `plimsoll COMMAND`, of `plimsoll COMMAND RECIPE`, or of `plimsoll prepare WHAT`."""
    command = program.removeprefix("plimsoll ")
    name, _, recipe = command.partition(" ")
    if name == "prepare":
        from plimsoll.recipes.registry import preparations

        return preparations()[recipe].example
    if name == "train" and (needs := _needs(recipe)):
        return f"plimsoll train {recipe} {needs}"
    return EXAMPLES.get(command, EXAMPLES.get(name, "")).format(recipe=recipe)


def _needs(recipe: str) -> str:
    """Returns options of a recipe's example instead of those of `EXAMPLES`; of a file's nothing is known."""
    from plimsoll.recipes.registry import PRESETS

    return PRESETS[recipe].needs if recipe in PRESETS else ""
