"""A run as one training session sees it: recipe, plan and data from the run folder, and the session's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from plimsoll.engine.options import Session
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan, Planned
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Opened, Recipe
from plimsoll.recipes.saved import from_dict


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run in one training session: the contents of its folder, and the session's options."""

    session: Session
    folder: RunFolder
    recipe: Recipe
    planned: Planned
    prepared: Prepared
    notes: list[str] = field(default_factory=list)
    """Sentences about this session for the log and the ledger, such as changes since the previous session.

    Loading and restoring add notes before the first step.
    """

    @classmethod
    def read(cls, session: Session) -> Self:
        """Reads recipe, plan, and facts about the prepared data from the folder of the session's run."""
        folder = RunFolder(session.run)
        return cls(
            session=session,
            folder=folder,
            recipe=from_dict(folder.read("recipe.json")),
            planned=folder.planned(),
            prepared=Prepared.read(folder),
            notes=list(session.notes),
        )

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    def open(self) -> Opened:
        """Opens the data that was prepared for the run, and returns it with the recipe."""
        return self.recipe.open(self.folder.path)
