"""The run of a session: what its folder holds, and the options of the session."""

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
    """A run as one session of it finds it."""

    session: Session
    folder: RunFolder
    recipe: Recipe
    planned: Planned
    prepared: Prepared
    notes: list[str] = field(default_factory=list)
    """Sentences for the log and the ledger. What is noticed before the first step is added to them."""

    @classmethod
    def read(cls, session: Session) -> Self:
        """Reads recipe, plan and facts about the data from the folder of the run."""
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
        """Returns the recipe with what was prepared for it in the folder."""
        return self.recipe.open(self.folder.path)
