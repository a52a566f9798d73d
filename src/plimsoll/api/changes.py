"""A run that goes on with something changed: its length, its learning rate, its data, or the place of that.

A longer run whose learning rates so far would have been the same is the same experiment, and so is one whose data lies
elsewhere with the same bytes: `train` goes on. Anything else has to be changed on purpose, by `plimsoll resume`, and
stands in data.json and in the notes of ledger and report. Other data is read from its beginning, with the vocabulary
that the run has learned.

The files that change are first written together: JSON as PENDING, prepared files in PREPARED. A process that is killed
in between leaves them, and the same command finishes. The plan is made anew with the levers it had, because the
schedule is part of what is compiled; PENDING stays until then.
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
"""File in a run's folder while it changes, with what recipe.json and data.json are to hold."""
PREPARED = ".changing"
"""Folder there with what was prepared of other data: tokenizer and held-out text."""
LENGTH = frozenset({"steps", "epochs"})
"""Options of a recipe that say its length."""
ON_PURPOSE = LENGTH | {"learning_rate", *NAMES_OF_DATA}
"""Options that `plimsoll resume` may change; with the data those of its part, too."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is not as a run began."""

    folder: RunFolder
    before: Recipe
    """Recipe of the run."""
    recipe: Recipe
    """Recipe that it goes on with."""
    prepared: Prepared
    """What was prepared for the run."""
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
        """Whether the user names data on purpose, which may be other data."""
        return not {*NAMES_OF_DATA}.isdisjoint(self.on_purpose)

    @property
    def of_data(self) -> set[str]:
        """Options of the data that differ besides places, and may where the user names data."""
        if not self.names_data:
            return set()
        own = {field.name for field in fields_of(type(self.recipe.data))}
        return (own & self.values.keys()) - self.places

    @cached_property
    def steps_taken(self) -> int:
        """Steps of the newest checkpoint that is whole, from which the run goes on."""
        return self.folder.newest_whole()[0]


def apply(changes: Changes, say: Say) -> None:
    """Changes the run, if that changes nothing of what was learned, or was asked for.

    Args:
        changes: What differs, if anything does.
        say: Function that is called with messages about other data as it is prepared.

    Raises:
        RunError: An option differs that cannot be changed, or was not changed on purpose.
        DataError: The data has other bytes and was not changed on purpose, or the model cannot read it.
    """
    folder, recipe, prepared = changes.folder, changes.recipe, changes.prepared
    shutil.rmtree(folder.path / PREPARED, ignore_errors=True)  # of a change that was never made
    changed = changes.values.keys()
    chosen = (ON_PURPOSE & {*changes.on_purpose}) | changes.of_data
    if changed - changes.places - LENGTH - chosen:
        raise _other_options(changes)

    # The data: the same bytes, wherever they are, or other data.
    moved = changes.places
    if is_other_data(changes):
        prepared = prepare_other_data(changes, say)
        moved = moved - {*NAMES_OF_DATA}

    # What the run becomes.
    sentences: list[str] = []
    if changed & LENGTH:
        steps, sentence = longer(changes, prepared)
        prepared = replace(prepared, steps=steps)
        sentences.append(sentence)
    for name in sorted(changed - moved - LENGTH):
        before, now = changes.values[name]
        sentences.append(f"changed at step {changes.steps_taken:,}: {flag_of(name)} from {before} to {now}")

    # Its files.
    prepared = replace(prepared, changes=[*prepared.changes, *sentences])
    if prepared != changes.prepared:
        folder.write(PENDING, {"data.json": prepared.to_json(), "recipe.json": to_dict(recipe)})
        finish(folder)
    elif changed:
        folder.write("recipe.json", to_dict(recipe))


def is_other_data(changes: Changes) -> bool:
    """Returns whether the data is not that of the run any more. Raises DataError where that is not on purpose."""
    try:
        changes.recipe.open(changes.folder.path).require_same(changes.prepared, training=True)
    except DataError as problem:
        if changes.names_data:
            return True
        named = changes.places & {*NAMES_OF_DATA}
        if not named:
            raise
        raise DataError(f"{problem}; {_resume(changes, named)} goes on with it on purpose") from None
    return bool(changes.of_data)


def prepare_other_data(changes: Changes, say: Say) -> Prepared:
    """Prepares other data for a run, beside its own files, and returns what data.json is to hold.

    Raises:
        DataError: The model of the run cannot read it.
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
            f"this data does not go with the model of {folder.path}, whose shape follows from its own data: {differs}."
            " Name data of the same shape, or another --run to begin anew"
        )
    place = folder.path / PREPARED
    place.mkdir()
    prepared = replace(recipe, data=data).open(place).prepare(say)
    return replace(prepared, steps=before.steps, changes=before.changes, data_since=changes.steps_taken)


def longer(changes: Changes, prepared: Prepared) -> tuple[int, str]:
    """Returns the other length of a run in steps, and a sentence about it. Raises RunError where it may not have it."""
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
    """Returns the refusal of options that cannot change, or not without being asked to."""
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
    """Returns the command that changes some options on purpose."""
    options = [
        f"{flag_of(name)} {now}" for name, (_, now) in changes.values.items() if name in names and now is not None
    ]
    return f"`plimsoll resume {changes.folder.path} {' '.join(options)}`"


def finish(folder: RunFolder) -> None:
    """Gives the run the files that PENDING and PREPARED hold, if they are there. Its plan is that of before."""
    if not folder.has(PENDING):
        return
    pending = folder.read(PENDING)
    if folder.has(PREPARED):
        shutil.copytree(folder.path / PREPARED, folder.path, dirs_exist_ok=True)
    folder.write("data.json", pending["data.json"])
    folder.seal()
    folder.write("recipe.json", pending["recipe.json"])
    shutil.rmtree(folder.path / PREPARED, ignore_errors=True)
