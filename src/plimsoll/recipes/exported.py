"""Writing a trained model for other programs: each form into a folder that is new, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError, PlimsollError, RecipeError
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.safetensors_folder import checked
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.types import TrainedRun

FORMS = ("adapter", "merged")
"""Options of `plimsoll export` that name a folder."""


def exported(
    trained: TrainedRun,
    request: Mapping[str, Any],
    writers: Mapping[str, Callable[[Path], int]],
    checks: Mapping[str, Callable[[], None]],
) -> dict[str, Any]:
    """Writes every form that is asked for, and returns run, step, and by form its place, parameters and bytes.

    Args:
        trained: The run.
        request: Place of each form of FORMS that is wanted.
        writers: For each form, a function that writes it into an empty folder, checks what it wrote, and returns the
            number of its parameters.
        checks: For each form, a function that raises why it cannot be written.

    Raises:
        PlimsollError: A form cannot be written, or its place is taken, named twice, or not to be written to. All forms
            are checked first, and nothing is written then.
    """
    wanted = {form: Path(os.path.abspath(Path(request[form]).expanduser())) for form in FORMS if request.get(form)}
    _require_all(wanted, request, checks)
    if len(set(wanted.values())) < len(wanted):
        raise RecipeError(
            f"{' and '.join(f'--{form}' for form in wanted)} name the same place: give each a folder of its own"
        )
    answer: dict[str, Any] = {"run": trained.run, "step": trained.step}
    for form, place in wanted.items():
        with _refuse_unwritable(form, request[form]), _new_folder(place) as unfinished:
            parameters = writers[form](unfinished)
        size = sum(path.stat().st_size for path in place.iterdir())
        answer[form] = {"out": str(place), "parameters": parameters, "bytes": size}
    return answer


def require_written(folder: Path, shape: PretrainedShape) -> None:
    """Raises DataError where a Hugging Face folder that was written is not read back as the model that it is of."""
    if read_shape(folder) != shape:
        raise DataError(
            f"{folder} was written with settings that do not describe the model: this is an error of plimsoll, please"
            " report it"
        )
    checked(folder, shape)


def _require_all(
    wanted: Mapping[str, Path], request: Mapping[str, Any], checks: Mapping[str, Callable[[], None]]
) -> None:
    """Raises the error of a form that cannot be written, and says of the others that they can."""
    problems: dict[str, PlimsollError] = {}
    for form, place in wanted.items():
        try:
            _require_new(form, place, request[form])
            checks[form]()
            with _refuse_unwritable(form, request[form]), _folder_beside(place):
                pass
        except PlimsollError as problem:
            problems[form] = problem
    if not problems:
        return
    first = next(iter(problems.values()))
    if len(wanted) == 1:
        raise first
    well = [f"--{form}" for form in wanted if form not in problems]
    wrong = " and ".join(f"--{form}" for form in problems)
    others = f"{' and '.join(well)} can: leave {wrong} out" if well else "No form can"
    reasons = "; ".join(f"--{form}: {problem}" for form, problem in problems.items())
    raise type(first)(f"nothing was written, because {wrong} cannot be written. {others}. {reasons}") from first


@contextmanager
def _refuse_unwritable(form: str, typed: str) -> Iterator[None]:
    """Turns an error of the operating system into a refusal of the place that was typed for a form."""
    try:
        yield
    except OSError as problem:
        raise RecipeError(
            f"--{form} {typed} cannot be written ({problem.strerror or problem}): name a place in a folder that is"
            " yours and has room"
        ) from problem


def _require_new(form: str, place: Path, typed: str) -> None:
    if place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise RecipeError(f"--{form} {typed} is there already: name a folder that is new or empty")


@contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """Gives a folder to write to, which becomes `place` at the end, and is removed if that fails."""
    with _folder_beside(place) as unfinished:
        unfinished.chmod(0o755)
        yield unfinished
        if place.is_dir():
            place.rmdir()  # it is empty
        os.replace(unfinished, place)


@contextmanager
def _folder_beside(place: Path) -> Iterator[Path]:
    """Gives a folder of a new name beside a place, whatever exists, which is removed at the end."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
