"""Changes of a run that continues: its length, its learning rate, its data, or the place of the data.

`train` accepts a longer run if its learning rates so far stay the same, and data in another place with the same bytes.
Other changes must be made on purpose by `plimsoll resume`. They are noted in data.json, the ledger and the report.
Other data is read from its beginning, with the vocabulary of the run.

Changed files are first written together: JSON as PENDING, prepared files in PREPARED. If the process is then killed,
the same command finishes the change. The plan is made again with the same levers, because the schedule is part of the
compiled step. PENDING stays until then.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from plimsoll.errors import DataError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.options import IS_PATH, fields_of, flag_of, notes_of
from plimsoll.recipes.flat import NAMES_OF_DATA, rows
from plimsoll.recipes.parts import Prepared, Say
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import differences, to_dict

PENDING = "changing.json"
"""File in a run's folder during a change, with the new content of recipe.json and data.json."""
PREPARED = ".changing"
"""Folder in a run's folder during a change, with prepared files of other data: tokenizer and held-out text."""
LENGTH = frozenset({"steps", "epochs"})
"""Options of a recipe that set the length of training."""
ON_PURPOSE = LENGTH | {"learning_rate", *NAMES_OF_DATA}
"""Options that `plimsoll resume` may change. If it names data, it may also change other options of the data."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Differences between a run as it began and as it is to continue."""

    folder: RunFolder
    before: Recipe
    """Recipe of the run so far."""
    recipe: Recipe
    """Recipe with which the run is to continue."""
    prepared: Prepared
    """Facts about the run's prepared data."""
    on_purpose: Collection[str] = ()
    """Options that the user changes by `plimsoll resume`."""

    @cached_property
    def values(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ, each with its value before and now."""
        return differences(self.before, self.recipe)

    @property
    def places(self) -> set[str]:
        """Options that name files or folders, and differ."""
        paths = {option.name for option in rows(self.recipe) if IS_PATH in notes_of(option.kind)}
        return paths & self.values.keys()

    @property
    def names_data(self) -> bool:
        """True if the user names data on purpose. It may be the same data or other data."""
        return not {*NAMES_OF_DATA}.isdisjoint(self.on_purpose)

    @property
    def of_data(self) -> set[str]:
        """Changed options of the data, other than places, if the user names data; else empty."""
        if not self.names_data:
            return set()
        own = {field.name for field in fields_of(type(self.recipe.data))}
        return (own & self.values.keys()) - self.places

    @cached_property
    def steps_taken(self) -> int:
        """Step of the newest intact checkpoint, from which the run continues."""
        return self.folder.newest_whole()[0]


def apply(changes: Changes, say: Say) -> None:
    """Changes the run, if the changes keep the results of training or were made on purpose.

    Args:
        changes: Differences of the run, or none.
        say: Function that is called with messages while other data is prepared.

    Raises:
        RunError: An option differs that cannot be changed, or was not changed on purpose.
        DataError: The data has other bytes and was not changed on purpose, or the model cannot read it.
    """
    folder, recipe, prepared = changes.folder, changes.recipe, changes.prepared
    shutil.rmtree(folder.path / PREPARED, ignore_errors=True)  # left by an unfinished change
    changed = changes.values.keys()
    chosen = (ON_PURPOSE & {*changes.on_purpose}) | changes.of_data
    if changed - changes.places - LENGTH - chosen:
        raise _other_options(changes)

    # Find out whether the data is the same, possibly in another place, or other data.
    moved = changes.places
    if is_other_data(changes):
        prepared = prepare_other_data(changes, say)
        moved = moved - {*NAMES_OF_DATA}

    # Describe the changes.
    sentences: list[str] = []
    if changed & LENGTH:
        steps, sentence = longer(changes, prepared)
        prepared = replace(prepared, steps=steps)
        sentences.append(sentence)
    for name in sorted(changed - moved - LENGTH):
        before, now = changes.values[name]
        sentences.append(f"changed at step {changes.steps_taken:,}: {flag_of(name)} from {before} to {now}")

    # Write the files.
    prepared = replace(prepared, changes=[*prepared.changes, *sentences])
    if prepared != changes.prepared:
        folder.write(PENDING, {"data.json": prepared.to_json(), "recipe.json": to_dict(recipe)})
        finish(folder)
    elif changed:
        folder.write("recipe.json", to_dict(recipe))


def is_other_data(changes: Changes) -> bool:
    """Returns True if the data differs from the run's data. Raises DataError if that is not on purpose."""
    try:
        changes.recipe.open(changes.folder.path).require_same(changes.prepared, training=True)
    except DataError as problem:
        if changes.names_data:
            return True
        named = changes.places & {*NAMES_OF_DATA}
        if not named:
            raise
        raise DataError(f"{problem}; {_resume(changes, named)} continues with the new data on purpose") from None
    return bool(changes.of_data)


def prepare_other_data(changes: Changes, say: Say) -> Prepared:
    """Prepares other data for a run in PREPARED, and returns the new content of data.json.

    Raises:
        DataError: The model of the run cannot read the data.
    """
    folder, recipe, before = changes.folder, changes.recipe, changes.prepared
    recipe.model.require_same(before.weights)
    data = recipe.data.with_vocabulary_of(folder.path, before)
    then = replace(before.spec, further={}).to_json()
    now = replace(recipe.spec, further={}).to_json()
    other = [name for name in then if then[name] != now[name]]
    if other:
        differs = "; ".join(f"{name} is {then[name]} there and {now[name]} here" for name in other)
        raise DataError(
            f"this data does not fit the model of {folder.path}, whose shape depends on its first data: {differs}. Name"
            " data of the same shape, or another --run to begin anew"
        )
    place = folder.path / PREPARED
    place.mkdir()
    prepared = replace(recipe, data=data).open(place).prepare(say)
    return replace(prepared, steps=before.steps, changes=before.changes, data_since=changes.steps_taken)


def longer(changes: Changes, prepared: Prepared) -> tuple[int, str]:
    """Returns the new length of a run in steps, and a sentence about it. Raises RunError if it is not allowed."""
    folder, old, taken = changes.folder, prepared.steps, changes.steps_taken
    is_on_purpose = not LENGTH.isdisjoint(changes.on_purpose)
    length = changes.recipe.length
    new = length.steps
    if new is None:
        if not length.epochs or not prepared.steps_per_epoch:
            raise RunError(
                f"{folder.path} is a run of {old:,} steps on data whose size is not known: give its new length in"
                " --steps"
            )
        new = max(1, int(length.epochs * prepared.steps_per_epoch))
    if new < (taken if is_on_purpose else old):
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, of which {taken:,} are taken, and {new:,} are shorter:"
            " leave the option out to continue (--max-steps stops early), or name another --run"
        )
    sentence = f"{'extended' if new >= old else 'shortened'} at step {taken:,} from {old:,} to {new:,} steps"
    if not taken or (new >= old and changes.before.optimizer.same_beginning(old, new, taken=taken)):
        return new, sentence
    if not is_on_purpose:
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, and {taken:,} of them are taken with its learning rates, which"
            f" are not known to be those of a run of {new:,}: a decay that has ended begins anew. `plimsoll resume"
            f" {folder.path} --steps {new}` goes on to step {new:,} with the rates that a run of {new:,} has from"
            " here; another --run begins anew"
        )
    return new, f"{sentence}; the steps before had the learning rates of the old length"


def _other_options(changes: Changes) -> RunError:
    """Returns the error for options that cannot change, or can change only on purpose."""
    values, run = changes.values, changes.folder.path
    if "kind" in values or "parts" in values:
        there, here = values.get("kind") or [_parts_in_words(parts) for parts in values["parts"]]
        return RunError(
            f"{run} is a run of {there}, and this is {here}: `plimsoll resume {run}` goes on with it; another --run"
            " begins anew"
        )
    words = "; ".join(f"{flag_of(name)} is {before!r} there and {now!r} here" for name, (before, now) in values.items())
    is_possible = values.keys() <= ON_PURPOSE | changes.places
    on_purpose = f"; {_resume(changes, values)} changes that on purpose" if is_possible else ""
    return RunError(
        f"{run} was begun with other options: {words}. `plimsoll resume {run}` goes on with its own{on_purpose};"
        " another --run begins anew"
    )


def _parts_in_words(parts: Mapping[str, str]) -> str:
    """Returns the parts of a recipe, like "model=decoder, data=text, optimizer=muon"."""
    return ", ".join(f"{role}={name}" for role, name in parts.items())


def _resume(changes: Changes, names: Collection[str]) -> str:
    """Returns the `plimsoll resume` command that changes some options on purpose."""
    options = [
        f"{flag_of(name)} {now}" for name, (_, now) in changes.values.items() if name in names and now is not None
    ]
    return f"`plimsoll resume {changes.folder.path} {' '.join(options)}`"


def finish(folder: RunFolder) -> None:
    """Completes a change: moves the content of PENDING and PREPARED, if they exist, into the run. Keeps its plan."""
    if not folder.has(PENDING):
        return
    pending = folder.read(PENDING)
    if folder.has(PREPARED):
        shutil.copytree(folder.path / PREPARED, folder.path, dirs_exist_ok=True)
    folder.write("data.json", pending["data.json"])
    folder.seal()
    folder.write("recipe.json", pending["recipe.json"])
    shutil.rmtree(folder.path / PREPARED, ignore_errors=True)
