"""Writing a trained model for other programs: each form into a place that is new, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.types import TrainedRun

FORMS = {"out": "folder", "adapter": "folder", "merged": "folder", "gguf": "file"}
"""Options of `plimsoll export` that name a place, and what each is. `out` is what `merged` was called before."""


def exported(
    trained: TrainedRun, request: Mapping[str, Any], writers: Mapping[str, Callable[[Path], int]]
) -> dict[str, Any]:
    """Writes every form that is asked for, and returns run, step, and by form its place, parameters and bytes.

    Those of `out` stand at the top, as they did before there were other forms.

    Args:
        trained: The run.
        request: Place of each form of FORMS that is wanted.
        writers: For each form, a function that writes it into an empty folder or a new file and returns the number of
            its parameters.

    Raises:
        RecipeError: A place is taken, named twice, or cannot be written to. Nothing is written then.
    """
    wanted = {form: Path(os.path.abspath(Path(request[form]).expanduser())) for form in FORMS if request.get(form)}
    for form, place in wanted.items():
        _require_new(form, place, request[form])
    if len(set(wanted.values())) < len(wanted):
        raise RecipeError(
            f"{' and '.join(f'--{form}' for form in wanted)} name the same place: give each a folder or file of its own"
        )
    answer: dict[str, Any] = {"run": trained.run, "step": trained.step}
    for form, place in wanted.items():
        try:
            with _new_place(place, FORMS[form]) as unfinished:
                parameters = writers[form](unfinished)
        except OSError as problem:
            raise RecipeError(
                f"--{form} {request[form]} cannot be written ({problem.strerror or problem}): name a place in a folder"
                " that is yours and has room"
            ) from problem
        files = place.iterdir() if place.is_dir() else [place]
        size = sum(path.stat().st_size for path in files)
        facts = {"out": str(place), "parameters": parameters, "bytes": size}
        answer |= facts if form == "out" else {form: facts}
    return answer


def _require_new(form: str, place: Path, typed: str) -> None:
    taken = place.exists() if FORMS[form] == "file" else place.is_file() or (place.is_dir() and any(place.iterdir()))
    if taken:
        advice = "a file that is not there yet" if FORMS[form] == "file" else "a folder that is new or empty"
        raise RecipeError(f"--{form} {typed} is there already: name {advice}")


@contextmanager
def _new_place(place: Path, kind: str) -> Iterator[Path]:
    """Gives a folder or a file's path to write to, which becomes `place` at the end, and is removed if that fails."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))  # a new name, whatever exists
    unfinished = beside / place.name if kind == "file" else beside
    try:
        beside.chmod(0o755)
        yield unfinished
        if place.is_dir():
            place.rmdir()  # it is empty
        os.replace(unfinished, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
