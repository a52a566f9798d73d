"""Export of a trained model for other programs, in one or more forms (`FORMS`).

Each form is written into a new folder, completely or not at all.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError, RecipeError
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.safetensors_folder import checked
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.saved import name_of
from plimsoll.types import TrainedRun

FORMS = ("adapter", "merged")
"""Forms of an exported model. Each is an option of `plimsoll export` that names its folder."""


def exported(
    trained: TrainedRun,
    request: Mapping[str, Any],
    writers: Mapping[str, Callable[[Path], int]],
) -> dict[str, Any]:
    """Writes every requested form. Returns run, step, and each form's folder, number of parameters, and bytes.

    Args:
        trained: The run.
        request: Folder of each requested form of FORMS.
        writers: For each form that the run has, a function that writes it into an empty folder, checks the files,
            and returns the number of parameters. A run without adapters has no form `adapter`.

    Raises:
        PlimsollError: A form cannot be written, or its folder is not empty, named twice, or not writable. All forms
            are checked before any is written.
    """
    places = _places(trained, request, writers.keys())
    answer: dict[str, Any] = {"run": trained.run, "step": trained.step}
    for form, place in places.items():
        with _unfinished(form, place) as folder:
            parameters = writers[form](folder)
            folder.chmod(0o755)
            os.replace(folder, place)  # which is empty, or not there
        size = sum(path.stat().st_size for path in place.iterdir())
        answer[form] = {"out": str(place), "parameters": parameters, "bytes": size}
    return answer


def _places(trained: TrainedRun, request: Mapping[str, Any], possible: Collection[str]) -> dict[str, Path]:
    """Returns the folder of each requested form, after a check that all these folders can be written."""
    places = {form: Path(os.path.abspath(Path(request[form]).expanduser())) for form in FORMS if request.get(form)}
    if len(set(places.values())) < len(places):
        raise RecipeError(
            f"{' and '.join(f'--{form}' for form in places)} name the same place: give each a folder of its own"
        )

    if other := places.keys() - possible:
        raise RecipeError(
            f"{trained.run} is a run of {name_of(trained.recipe)} that learned the whole model, and --{min(other)} is"
            " for adapters, which finetune learns by --lora-rank: export it with --merged FOLDER, which transformers"
            " loads"
        )

    for form, place in places.items():
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            raise RecipeError(f"--{form} {request[form]} is there already: name a folder that is new or empty")
        with _unfinished(form, place):
            pass
    return places


def require_written(folder: Path, shape: DecoderShape) -> None:
    """Raises DataError if an exported Hugging Face folder does not describe the exported model."""
    if read_shape(folder) != shape:
        raise DataError(
            f"{folder} was written with settings that do not describe the model: this is an error of plimsoll, please"
            " report it"
        )
    checked(folder, shape)


@contextmanager
def _unfinished(form: str, place: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `place`. Removes it at the end, unless the caller renamed it.

    Raises:
        RecipeError: The folder cannot be written.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as problem:
        raise RecipeError(
            f"--{form} {place} cannot be written ({problem.strerror or problem}): name a place in a folder that is"
            " yours and has room"
        ) from problem
