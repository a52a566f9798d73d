"""A run that goes on beyond the length it was begun with: `--steps 400` on a run of 200.

Where the learning rate of the steps that were taken would have been another one in the longer run, going on is another
experiment: it is refused unless the user says `--extend`. What was done stands in data.json, and in the ledger's notes.

The files that change are first written together, as PENDING: a process that is killed in between leaves it, and the
same command finishes. The plan is made anew with the levers it had, because the schedule is part of what is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.errors import RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.saved import to_dict

PENDING = "extending.json"
"""File in a run's folder while its length changes, with what recipe.json and data.json are to hold."""
LENGTH = frozenset({"steps", "epochs"})
"""Fields of a recipe that say its length."""


def extend(folder: RunFolder, before: Recipe, recipe: Recipe, *, allowed: bool) -> None:
    """Gives the run another length, if that changes nothing of what was learned, or is `allowed` to.

    Args:
        folder: The run.
        before: Its recipe.
        recipe: The same recipe with another length in steps.
        allowed: Whether the user said `--extend`.

    Raises:
        RunError: The length is not given in steps, the run is longer already, or the steps that were taken would have
            been others in a longer run and it is not `allowed`.
    """
    data = folder.read("data.json")
    old, taken, new = data["steps"], max(folder.saved_steps(), default=0), recipe.steps
    if new is None:
        per_epoch = data["steps_per_epoch"]
        steps = f" {int(recipe.epochs * per_epoch)}" if recipe.epochs and per_epoch else ""
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, and its length cannot be changed in epochs: give --steps{steps}"
            " instead (with --extend where the learning rate has fallen), or use the same options to continue it"
        )
    if new < old:
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, of which {taken:,} are taken, and --steps {new:,} is shorter:"
            " use the same options to continue it (--max-steps stops early), or name another --run"
        )
    same = not taken or before.same_beginning(old, new, taken=taken)
    if not same and not allowed:
        raise RunError(
            f"{folder.path} is a run of {old:,} steps, and {taken:,} of them are taken with its learning rates, which"
            f" are not known to be those of a run of {new:,}: a decay that has ended begins anew. Add --extend to go on"
            f" to step {new:,} with the rates that a run of {new:,} has from here, or name another --run to begin anew"
        )
    entry = {"step": taken, "before": old, "steps": new, "same": same}
    facts = {**data["facts"], "extended": [*data["facts"].get("extended", []), entry]}
    folder.write(PENDING, {"data.json": {**data, "steps": new, "facts": facts}, "recipe.json": to_dict(recipe)})
    finish(folder)


def finish(folder: RunFolder) -> None:
    """Writes what PENDING holds, if it is there. Its plan is still that of the old length."""
    if not folder.has(PENDING):
        return
    pending = folder.read(PENDING)
    folder.write("data.json", pending["data.json"])
    folder.seal()
    folder.write("recipe.json", pending["recipe.json"])


def is_pending(folder: RunFolder) -> bool:
    """Returns whether the run's plan has to be made anew for its new length."""
    return folder.has(PENDING)


def plan_is_made(folder: RunFolder) -> None:
    """Notes that the plan is that of the new length."""
    (folder.path / PENDING).unlink(missing_ok=True)


def words(entry: Mapping[str, Any]) -> str:
    """Returns a sentence about one extension, as data.json has it among the facts."""
    sentence = f"extended at step {entry['step']:,} from {entry['before']:,} to {entry['steps']:,} steps"
    return sentence if entry["same"] else f"{sentence}; the steps before had the learning rates of the old length"


def notes(folder: RunFolder, prepared: Prepared) -> tuple[str, ...]:
    """Returns the sentences about extensions that the ledger does not have yet."""
    try:
        known: set[str] = {*folder.read("ledger.json")["notes"]} if folder.has("ledger.json") else set()
    except (RunError, KeyError, TypeError):  # damaged: the session says so, and starts another
        known = set()
    sentences = [words(entry) for entry in prepared.facts.get("extended", [])]
    return tuple(sentence for sentence in sentences if sentence not in known)
