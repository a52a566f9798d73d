"""A run that goes on with something changed: its length, its learning rate, or the place of its data.

A longer run whose learning rates so far would have been the same is the same experiment, and so is one whose data lies
elsewhere with the same bytes: `train` goes on. Anything else has to be changed on purpose, by `plimsoll resume`, and
stands in data.json and in the notes of ledger and report.

The files that change are first written together, as PENDING: a process that is killed in between leaves it, and the
same command finishes. The plan is made anew with the levers it had, because the schedule is part of what is compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plimsoll.errors import RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.options import IS_PATH, flag_of, notes_of
from plimsoll.recipes.flat import rows
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import differences, to_dict

PENDING = "changing.json"
"""File in a run's folder while it changes, with what recipe.json and data.json are to hold."""
LENGTH = frozenset({"steps", "epochs"})
"""Options of a recipe that say its length."""
ON_PURPOSE = LENGTH | {"learning_rate"}
"""Options that `plimsoll resume` may change."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is not as a run began."""

    folder: RunFolder
    before: Recipe
    """Recipe of the run."""
    recipe: Recipe
    """Recipe that it goes on with."""

    @property
    def values(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ, each with its value before and now."""
        return differences(self.before, self.recipe)

    @property
    def places(self) -> frozenset[str]:
        """Options that name files or folders, and differ."""
        paths = {option.name for option in rows(self.recipe) if IS_PATH in notes_of(option.kind)}
        return frozenset(paths & self.values.keys())

    @cached_property
    def steps_taken(self) -> int:
        """Steps of the newest checkpoint that is whole, from which the run goes on."""
        return self.folder.newest_whole()

    @property
    def in_words(self) -> str:
        """The options that differ, with both values."""
        return "; ".join(
            f"{flag_of(name)} is {before!r} there and {now!r} here" for name, (before, now) in self.values.items()
        )


def apply(changes: Changes, prepared: Prepared, *, on_purpose: Collection[str] = ()) -> None:
    """Changes the run, if that changes nothing of what was learned, or was asked for.

    Args:
        changes: What differs, if anything does.
        prepared: What was prepared for the run.
        on_purpose: Options that the user changes by `plimsoll resume`.

    Raises:
        RunError: An option differs that cannot be changed, or was not changed on purpose.
        DataError: The data in another place has other bytes.
    """
    changed = changes.values.keys()
    if changed - changes.places - LENGTH - (ON_PURPOSE & {*on_purpose}):
        raise _other_options(changes)
    folder = changes.folder
    if changes.places:
        changes.recipe.open(folder.path).require_same(prepared, training=True)

    # What the run becomes.
    entries: list[dict[str, Any]] = []
    steps = prepared.steps
    if changed & LENGTH:
        entry = _longer(changes, prepared, is_on_purpose=bool(LENGTH & {*on_purpose}))
        entries.append(entry)
        steps = entry["steps"]
    for name in sorted(changed - changes.places - LENGTH):
        before, now = changes.values[name]
        entries.append({"step": changes.steps_taken, "option": name, "before": before, "now": now})

    # Its files.
    if not entries:
        if changed:
            folder.write("recipe.json", to_dict(changes.recipe))
        return
    data = folder.read("data.json")
    facts = {**data["facts"], "changed": [*data["facts"].get("changed", []), *entries]}
    folder.write(
        PENDING, {"data.json": {**data, "steps": steps, "facts": facts}, "recipe.json": to_dict(changes.recipe)}
    )
    finish(folder)


def _other_options(changes: Changes) -> RunError:
    """Returns the refusal of options that cannot change, or not without being asked to."""
    possible = changes.values.keys() <= ON_PURPOSE | changes.places
    words = " ".join(f"{flag_of(name)} {now}" for name, (_, now) in changes.values.items() if now is not None)
    on_purpose = f"; `plimsoll resume {changes.folder.path} {words}` changes that on purpose" if possible else ""
    return RunError(
        f"{changes.folder.path} was begun with other options: {changes.in_words}. `plimsoll resume"
        f" {changes.folder.path}` goes on with its own{on_purpose}; another --run begins anew"
    )


def _longer(changes: Changes, prepared: Prepared, *, is_on_purpose: bool) -> dict[str, Any]:
    """Returns the entry of a run that gets another length. Raises RunError where it may not."""
    folder, old, taken = changes.folder, prepared.steps, changes.steps_taken
    length = changes.recipe.length
    new = length.steps or steps_of_epochs(length.epochs, prepared)
    if new is None:
        raise RunError(
            f"{folder.path} is a run of {old:,} steps on data whose size is not known: give its new length in --steps"
        )
    if new < (taken if is_on_purpose else old):
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, of which {taken:,} are taken, and {new:,} are shorter:"
            " leave the option out to continue (--max-steps stops early), or name another --run"
        )
    is_same = not taken or (new >= old and changes.before.optimizer.same_beginning(old, new, taken=taken))
    if not is_same and not is_on_purpose:
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, and {taken:,} of them are taken with its learning rates, which"
            f" are not known to be those of a run of {new:,}: a decay that has ended begins anew. `plimsoll resume"
            f" {folder.path} --steps {new}` goes on to step {new:,} with the rates that a run of {new:,} has from"
            " here; another --run begins anew"
        )
    return {"step": taken, "before": old, "steps": new, "same": is_same}


def steps_of_epochs(epochs: float | None, prepared: Prepared) -> int | None:
    """Returns the steps of so many passes over a run's data; None where its size is unknown."""
    if not epochs or not prepared.steps_per_epoch:
        return None
    return max(1, int(epochs * prepared.steps_per_epoch))


def finish(folder: RunFolder) -> None:
    """Writes what PENDING holds, if it is there. Its plan is still that of before."""
    if not folder.has(PENDING):
        return
    pending = folder.read(PENDING)
    folder.write("data.json", pending["data.json"])
    folder.seal()
    folder.write("recipe.json", pending["recipe.json"])


def is_pending(folder: RunFolder) -> bool:
    """Returns whether the run's plan has to be made anew for what has changed."""
    return folder.has(PENDING)


def plan_is_made(folder: RunFolder) -> None:
    """Notes that the plan is that of the changed run."""
    (folder.path / PENDING).unlink(missing_ok=True)


def words(entry: Mapping[str, Any]) -> str:
    """Returns a sentence about one change, as data.json has it among the facts."""
    if "option" in entry:
        flag = flag_of(entry["option"])
        return f"changed at step {entry['step']:,}: {flag} from {entry['before']} to {entry['now']}"
    verb = "extended" if entry["steps"] >= entry["before"] else "shortened"
    sentence = f"{verb} at step {entry['step']:,} from {entry['before']:,} to {entry['steps']:,} steps"
    return sentence if entry["same"] else f"{sentence}; the steps before had the learning rates of the old length"


def notes(folder: RunFolder, prepared: Prepared) -> tuple[str, ...]:
    """Returns the sentences about changes that the ledger does not have yet."""
    try:
        known: set[str] = {*folder.read("ledger.json")["notes"]} if folder.has("ledger.json") else set()
    except (RunError, KeyError, TypeError):  # damaged: the session says so, and starts another
        known = set()
    sentences = [words(entry) for entry in prepared.facts.get("changed", [])]
    return tuple(sentence for sentence in sentences if sentence not in known)
