"""A trained run written for other programs: what `plimsoll export` and `Tune.export` call."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.files.bucket import fetched
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import name_in, uses_of
from plimsoll.recipes.verbs import lacking

Place = str | os.PathLike[str] | None
FILES = re.compile(
    r"\.(onnx|gguf|ggml|safetensors|bin|pt|pth|pkl|ckpt|h5|keras|tflite|pb|npz|mlmodel|engine|zip|tar)", re.IGNORECASE
)
"""Ends of names that stand for files of models, none of which is written."""


def export(
    run: str,
    *,
    adapter: Place = None,
    merged: Place = None,
    step: str = "best",
) -> dict[str, Any]:
    """Writes a trained run for other programs, in a process of its own.

    Args:
        run: Folder of the run, or its address in a bucket.
        adapter: Folder for the adapters, which `peft.PeftModel.from_pretrained` takes.
        merged: Folder for the whole model, which `transformers` loads.
        step: Number of a checkpoint, `last`, or `best`.

    Returns:
        `run`, `step`, and for each form `out`, `parameters`, `bytes`.

    Raises:
        RecipeError: No form is named, a place is taken, or the run has no such form.
    """
    places = {"adapter": adapter, "merged": merged}
    request = {form: os.fspath(place) for form, place in places.items() if place is not None}
    if not all(request.values()) or not request:
        raise RecipeError(
            "export writes nothing without a place: name --merged FOLDER for transformers, or of a run of finetune"
            " --adapter FOLDER for peft"
        )
    for place in request.values():
        refuse_file(place)
    here = fetched(run)
    saved = RunFolder(here).read("recipe.json")
    if "export" not in uses_of(saved).verbs:
        raise lacking("export", here, name_in(saved))
    return ask("export", {**request, "run": here, "step": step})


def refuse_file(place: str) -> None:
    """Raises RecipeError for a name like `x.onnx`: a model is exported into a folder, in one of two formats."""
    suffix = Path(place).suffix
    if FILES.fullmatch(suffix) and not Path(place).is_dir():
        raise RecipeError(
            f"{place} names a {suffix} file, and a model is exported into a folder: in the Hugging Face format,"
            " which transformers loads and other programs convert (--merged FOLDER, in Python export(FOLDER)); of a"
            " run of finetune also as adapters for peft (--adapter FOLDER)"
        )
