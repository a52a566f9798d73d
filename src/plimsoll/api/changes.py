"""Changes to a run that continues: to its length, learning rate, data, or location of the data.

`plimsoll train` accepts more steps if past learning rates stay the same, and moved data if its bytes are the same.
Other changes need the command `plimsoll resume`. They are noted in data.json, the memory ledger and the report. New
data is read from its beginning, with the vocabulary of the run.

A change is first written to temporary places: JSON to PENDING, files made from new data to PREPARED. If the process is
then killed, the same command finishes the change. Then the run is planned again with the same memory-saving options,
because the learning-rate schedule is part of the compiled step. The new plan deletes PENDING.
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
"""Folder in a run's folder during a change, with files made from the new data: tokenizer and held-out text."""
LENGTH = frozenset({"steps", "epochs"})
"""Options of a recipe that set the length of training."""
ON_PURPOSE = LENGTH | {"learning_rate", *NAMES_OF_DATA}
"""Options that `plimsoll resume` may change. A command that names data may also change other options of the data."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Old and new recipe of a run that continues, and their differences."""

    folder: RunFolder
    before: Recipe
    """Recipe of the run so far."""
    recipe: Recipe
    """Recipe with which the run is to continue."""
    prepared: Prepared
    """Content of the run's data.json: number of steps, and facts about the data."""
    on_purpose: Collection[str] = ()
    """Names of the recipe's options that the user gave to `plimsoll resume`."""

    @cached_property
    def values(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ between the two recipes, each with its old and new value."""
        return differences(self.before, self.recipe)

    @property
    def places(self) -> set[str]:
        """Names of differing options whose values are paths."""
        paths = {option.name for option in rows(self.recipe) if IS_PATH in notes_of(option.kind)}
        return paths & self.values.keys()

    @property
    def names_data(self) -> bool:
        """True if the user gave `plimsoll resume` an option that names data, even the run's own data."""
        return not {*NAMES_OF_DATA}.isdisjoint(self.on_purpose)

    @property
    def of_data(self) -> set[str]:
        """Names of data options that differ, except paths; empty if the user's command names no data."""
        if not self.names_data:
            return set()
        own = {field.name for field in fields_of(type(self.recipe.data))}
        return (own & self.values.keys()) - self.places

    @cached_property
    def steps_taken(self) -> int:
        """Step of the newest intact checkpoint, from which the run continues."""
        return self.folder.newest_whole()[0]


def apply(changes: Changes, say: Say) -> None:
    """Applies changes to a run, if they keep the results of training or the user requested them by `plimsoll resume`.

    Args:
        changes: Old and new recipe of the run, which may be equal.
        say: Function that is called with progress messages while new data is read.

    Raises:
        RunError: An option differs that cannot be changed, or that only `plimsoll resume` can change.
        DataError: The data has other bytes but the user named no new data, or the model cannot read the new data.
    """
    folder, recipe, prepared = changes.folder, changes.recipe, changes.prepared
    shutil.rmtree(folder.path / PREPARED, ignore_errors=True)  # left by an unfinished change
    changed = changes.values.keys()
    chosen = (ON_PURPOSE & {*changes.on_purpose}) | changes.of_data
    if changed - changes.places - LENGTH - chosen:
        raise _other_options(changes)

    # Find out whether the data is the same, possibly at another path, or other data.
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
    """Returns True if the data or its options differ from the run's.

    Raises:
        DataError: They differ, but the user's command names no data.
    """
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
    """Writes the files for a run's new data into the folder PREPARED. Returns the new content of data.json.

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
            f"the model of {folder.path} was built for the sizes of its first data, and cannot read this data:"
            f" {differs}. Name data of the same sizes, or another --run to begin anew"
        )
    place = folder.path / PREPARED
    place.mkdir()
    prepared = replace(recipe, data=data).open(place).prepare(say)
    return replace(prepared, steps=before.steps, changes=before.changes, data_since=changes.steps_taken)


def longer(changes: Changes, prepared: Prepared) -> tuple[int, str]:
    """Returns a run's new number of steps, and a sentence for the report. Raises RunError for an invalid number."""
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
            f"{folder.path} is a run of {old:,} steps, of which {taken:,} are taken. Their learning rates may differ"
            f" from those of a run of {new:,}: a decay that has ended would begin anew. `plimsoll resume"
            f" {folder.path} --steps {new}` goes on to step {new:,}, from here with the rates of a run of {new:,};"
            " another --run begins anew"
        )
    return new, f"{sentence}; the steps before had the learning rates of the old length"


def _other_options(changes: Changes) -> RunError:
    """Returns the error for differing options that cannot change, or that only `plimsoll resume` can change."""
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
    """Returns the parts of a recipe as text, like "model=decoder, data=text, optimizer=muon"."""
    return ", ".join(f"{role}={name}" for role, name in parts.items())


def _resume(changes: Changes, names: Collection[str]) -> str:
    """Returns the `plimsoll resume` command that changes the options in `names`."""
    options = [
        f"{flag_of(name)} {now}" for name, (_, now) in changes.values.items() if name in names and now is not None
    ]
    return f"`plimsoll resume {changes.folder.path} {' '.join(options)}`"


def finish(folder: RunFolder) -> None:
    """Completes a change: copies the content of PENDING and PREPARED, if they exist, into the run's own files."""
    if not folder.has(PENDING):
        return
    pending = folder.read(PENDING)
    if folder.has(PREPARED):
        shutil.copytree(folder.path / PREPARED, folder.path, dirs_exist_ok=True)
    folder.write("data.json", pending["data.json"])
    folder.seal()
    folder.write("recipe.json", pending["recipe.json"])
    shutil.rmtree(folder.path / PREPARED, ignore_errors=True)
