"""A trained run in Python: what its files say, and the commands that use it as methods. `plimsoll.load`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.api import run_page, use
from plimsoll.api.export import GgufType, Place
from plimsoll.api.export import export as write_export
from plimsoll.api.keywords import did_you_mean
from plimsoll.api.run_facts import RunLedger, ledger_of, run_row
from plimsoll.errors import PlimsollError, as_written
from plimsoll.recipes.own.pickled import is_here, is_pickled
from plimsoll.report.layout import UNKNOWN, format_known_bytes, known
from plimsoll.report.metrics import read_rows
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched

Step = int | str


class Run:
    """A run on disk: its metrics, parameters and bytes, and what can be done with what it has learned.

    Reading a run writes nothing into it, so it may be training meanwhile. Only `params` imports JAX; what else needs
    the model runs in a process of its own.

    Attributes:
        path: The run's folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = RunFolder(os.fspath(path))
        self.path: Path = self.folder.path

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the logged rows, oldest first, as dicts: `pandas.DataFrame(run.metrics())` is a table of them.

        A row of training has `step`, `loss`, `step_seconds`, `elapsed_seconds`, tokens or examples per second,
        `resident_bytes` and what the recipe adds; a row of an evaluation has `step`, `validation_loss` and
        `elapsed_seconds`.
        """
        return list(read_rows(self.folder.metrics)) if self.folder.metrics.exists() else []

    @property
    def ledger(self) -> RunLedger:
        """Bytes that were predicted and measured, by part.

        Raises:
            RunError: The run has no plan yet.
        """
        return ledger_of(self.folder)

    def params(self, step: Step = "best", *, average: bool = True) -> Any:
        """Returns the parameters of a checkpoint, after verifying its checksums: a tree of arrays.

        Weights that were kept as the bits of bfloat16 are bfloat16 arrays. Where some weights are frozen, or are
        tables, it is a dict of `trainable` and `frozen` or `tables`; else the tree of what was learned itself. Of a run
        by functions that this program has not given, it is dicts of arrays by the names of what they were in.

        Args:
            step: Number of a checkpoint, `last`, or `best` (lowest validation loss, else the last).
            average: Whether to return the average of the weights, where the run keeps one.

        Raises:
            CheckpointError: The run has no such checkpoint, or it is damaged.
        """
        saved = self.folder.read("recipe.json")
        self.folder.require_saved()
        from plimsoll.inference.trained import Trained, params_without_code

        if is_pickled(saved) and not is_here(saved):
            return params_without_code(str(self.path), step=str(step), average=average)

        return Trained(str(self.path), step=str(step)).readable_params(average=average)

    def evaluate(
        self,
        step: Step = "best",
        *,
        raw: bool = False,
        closed_loop: bool = False,
        keep_seen: bool = False,
        picture: Place = None,
        submission: Place = None,
    ) -> dict[str, Any]:
        """Returns the metrics of a checkpoint on the held-out set, as `plimsoll evaluate` prints them.

        Args:
            step: Number of a checkpoint, `last`, or `best`.
            raw: Of a run that keeps an average of its weights: adds the metrics of the weights as they were trained.
            closed_loop: Of a run of control: lets it drive the systems, which takes minutes.
            keep_seen: Of a run of recommend: ranks the items that a user has already taken, too.
            picture: A .png or .svg file to draw: journeys of `closed_loop`; of longcontext the loss by position.
            submission: Of a run of ARC: a .json file for two attempts at every test input.

        Raises:
            PlimsollError: Nothing is saved yet, there is no held-out set, or the recipe does not support an option.
        """
        options: dict[str, Any] = {"raw": raw, "closed_loop": closed_loop, "keep_seen": keep_seen}
        return use.evaluate(str(self.path), step=str(step), picture=picture, submission=submission, **options)

    def sample(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 40,
        seed: int = 0,
        step: Step = "best",
    ) -> str:
        """Returns the prompt and the text that the model writes after it.

        Args:
            prompt: What the text begins with; empty: the beginning of a document.
            tokens: Tokens at most; the model may end its document earlier.
            temperature: Divides the logits: 0 takes the likeliest token every time.
            top_k: Draws among so many likeliest tokens; 0 for all.
            seed: The same seed writes the same text.
            step: Number of a checkpoint, `last`, or `best`.

        Raises:
            PlimsollError: Nothing is saved yet, or the recipe writes no text.
        """
        writing = use.Writing(prompt=prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed)
        return prompt + use.sample(str(self.path), writing, step=str(step))["text"]

    def solve(self, puzzle: str, *, step: Step = "best") -> dict[str, Any]:
        """Returns a puzzle's answer, the steps it took, and whether it keeps the rules.

        Args:
            puzzle: Its characters row after row, a file with them, or `test:17`, an example of the test split.
            step: Number of a checkpoint, `last`, or `best`.

        Raises:
            PlimsollError: The puzzle cannot be read, nothing is saved yet, or the recipe solves no puzzles.
        """
        return use.solve(str(self.path), puzzle, step=str(step))

    def rank(
        self, history: str | Sequence[str | int], *, top: int = 10, keep_seen: bool = False, step: Step = "best"
    ) -> dict[str, Any]:
        """Returns the items that come next, and how likely each one is.

        Args:
            history: Items that were taken, oldest first, as the file that was prepared calls them: a list, or a text in
                which commas separate them.
            top: Items to name.
            keep_seen: Whether to rank the history's own items, too.
            step: Number of a checkpoint, `last`, or `best`.

        Raises:
            PlimsollError: An item is not known, nothing is saved yet, or the recipe ranks no items.
        """
        ranking = use.Ranking(top=top, keep_seen=keep_seen)
        return use.rank(str(self.path), history, ranking, step=str(step))

    def export(
        self,
        path: Place = None,
        *,
        adapter: Place = None,
        gguf_type: GgufType | None = None,
        step: Step = "best",
    ) -> dict[str, Any]:
        """Writes what was learned for other programs, and returns place, parameters and bytes of each form.

        Args:
            path: Place of the whole model: a folder that `transformers` loads, or a file whose name ends in .gguf,
                which llama.cpp and Ollama run.
            adapter: Folder for the adapters of a run of finetune, which `peft` loads.
            gguf_type: Type of the kernels in a .gguf file; None: as the folder would have them.
            step: Number of a checkpoint, `last`, or `best`.

        Raises:
            PlimsollError: A place is taken, nothing is saved yet, or the recipe has no such form.
        """
        places: dict[str, Any] = {"adapter": adapter}
        if path is not None:
            places["gguf" if os.fspath(path).lower().endswith(".gguf") else "merged"] = path
        return write_export(str(self.path), **places, gguf_type=gguf_type, step=str(step))

    def report(self, out: Place = None, *, model: bool = True, closed_loop: bool = False) -> Path:
        """Writes one page about the run, as `plimsoll report` does, and returns its path.

        Args:
            out: The .html file; by default report.html in the run's folder.
            model: Whether to ask the model what it makes.
            closed_loop: Whether a run of control is to drive its systems, which takes minutes.

        Raises:
            PlimsollError: There is nothing to show yet, or the page cannot be written.
        """
        return run_page.write([str(self.path)], out=out, model=model, closed_loop=closed_loop)

    @property
    def fingerprint(self) -> str:
        """One SHA-256 over everything that was learned; takes seconds. It warns of newer checkpoints that are damaged.

        Raises:
            CheckpointError: No checkpoint is whole.
        """
        answer = use.fingerprint(str(self.path))
        for note in answer["notes"]:
            warnings.warn(f"{note}; the newest whole one is of step {answer['step']:,}", stacklevel=2)
        return answer["fingerprint"]

    def _words(self) -> dict[str, str]:
        """Returns how far the run came and its bytes, in words. A dash stands for what cannot be read."""
        row = run_row(self.path, name=self.path.name)
        try:
            with as_written(f"a file of {self.path}"):
                sizes = [self.ledger.predicted_bytes, self.ledger.measured_bytes, self.ledger.budget_bytes]
        except PlimsollError:
            sizes = [None, None, None]
        predicted, measured, budget = map(format_known_bytes, sizes)
        return {
            "recipe": row.get("recipe") or UNKNOWN,
            "steps": f"{known(row.get('step'), ',')} of {known(row.get('steps'), ',')}, {row['state']}",
            "loss": known(row.get("loss"), ".4f"),
            "predicted": predicted,
            "measured": measured,
            "budget": budget,
            "path": str(self.path),
        }

    def __repr__(self) -> str:
        return f"Run({', '.join(f'{name}: {text}' for name, text in self._words().items())})"

    def _repr_html_(self) -> str:
        from plimsoll.report.page.notebook import run_html

        try:
            with as_written(f"a file of {self.path}"):
                read = {name: self.folder.read(name) for name in ("plan.json", "ledger.json") if self.folder.has(name)}
                return run_html(self._words(), read.get("plan.json", {}), read.get("ledger.json", {}))
        except PlimsollError:  # the words say what is damaged
            return run_html(self._words(), {}, {})

    def __dir__(self) -> list[str]:
        return sorted(name for name in {*vars(self), *vars(Run)} if not name.startswith("_"))

    if not TYPE_CHECKING:  # to a type checker a run has its attributes and nothing else

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or "folder" not in vars(self):
                raise AttributeError(name)
            if hasattr(self.folder, name):  # as of a RunFolder, which `train` returned before
                return getattr(self.folder, name)
            raise AttributeError(f"a run has no {name!r}" + (did_you_mean(name, dir(self)) or f"; it has {dir(self)}"))


def load(path: str | os.PathLike[str]) -> Run:
    """Returns a run that was trained before, finished or not.

    Args:
        path: Folder of the run, or its address in a bucket, from which it is fetched.

    Raises:
        RunError: There is no run.

    Example:
        >>> run = plimsoll.load("runs/code")
        >>> pandas.DataFrame(run.metrics()).plot("step", "loss")
    """
    run = Run(fetched(os.fspath(path)))
    run.folder.read("recipe.json")
    return run
