"""A trained run written for other programs: what `plimsoll export` and `Tune.export` call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

from plimsoll.errors import RecipeError
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of, name_in
from plimsoll.recipes.verbs import lacking
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched

GgufType = Literal["bf16", "f16", "f32", "q8_0"]
Place = str | os.PathLike[str] | None
ENDINGS_OF_FILES = {
    *(".onnx", ".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".h5", ".keras", ".pkl", ".npz", ".zip", ".tar"),
    *(".tflite", ".mlmodel", ".mlpackage", ".pb", ".engine", ".ggml", ".gguf"),
}
"""Endings of files of other programs, for which a folder would be no answer."""


def export(
    run: str,
    *,
    adapter: Place = None,
    merged: Place = None,
    gguf: Place = None,
    gguf_type: GgufType | None = None,
    out: Place = None,
    step: str = "best",
) -> dict[str, Any]:
    """Writes a trained run for other programs, in a process of its own.

    Args:
        run: Folder of the run, or its address in a bucket.
        adapter: Folder for the adapters, which `peft.PeftModel.from_pretrained` takes.
        merged: Folder for the whole model, which `transformers` loads.
        gguf: File for the whole model, which llama.cpp and Ollama run.
        gguf_type: Type of its kernels; None: as `merged` has them.
        out: The name that `merged` had first, for a run without adapters.
        step: Number of a checkpoint, `last`, or `best`.

    Returns:
        `run`, `step`, and for each form `out`, `parameters`, `bytes`; those of `out` without a form's name.

    Raises:
        RecipeError: No form is named, a place is taken, or the run has no such form.
    """
    places = {"adapter": adapter, "merged": merged, "gguf": gguf, "out": out}
    request = {form: os.fspath(place) for form, place in places.items() if place is not None}
    if not all(request.values()) or not request:
        raise RecipeError(
            "export writes nothing without a place: name --merged FOLDER for transformers, --gguf FILE for llama.cpp,"
            " or of a run of finetune --adapter FOLDER for peft"
        )
    if gguf_type is not None and gguf is None:
        raise RecipeError(f"--gguf-type {gguf_type} is the type of a GGUF file's kernels: name the file with --gguf")
    if gguf_type is not None and gguf_type not in get_args(GgufType):
        raise RecipeError(f"--gguf-type {gguf_type} is not one of {', '.join(get_args(GgufType))}")
    for form in request.keys() - {"gguf"}:
        ending = Path(request[form]).suffix.lower()
        if ending in ENDINGS_OF_FILES:
            raise RecipeError(
                f"{request[form]} ends in {ending} like a file, and what transformers and peft read is a folder: name"
                " one, or for llama.cpp say gguf as the form (--gguf FILE, in Python gguf=FILE). There is no other form"
            )
    here = fetched(run)
    saved = RunFolder(here).read("recipe.json")
    if "export" not in class_of(saved).verbs:
        raise lacking("export", here, name_in(saved))
    return ask("export", {**request, "gguf_type": gguf_type, "run": here, "step": step})
