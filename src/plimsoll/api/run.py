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
from plimsoll.api.run_facts import RunLedger, ledger_of, run_row
from plimsoll.errors import PlimsollError, as_written, unknown_attribute
from plimsoll.recipes.own.pickled import is_here, is_pickled
from plimsoll.report.layout import UNKNOWN, format_known_bytes, known
from plimsoll.report.metrics import read_rows
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched

Step = int | str


class Run:
    """Trained run on disk, as `plimsoll.train` and `plimsoll.load` return it.

    Reading a run changes nothing, so it may be training meanwhile. `params` imports JAX into this process; the other
    methods that need the model use a process of their own.

    Attributes:
        path: Folder of the run.

    Example:
        >>> run = plimsoll.load("runs/code")  # doctest: +SKIP
        >>> run.metrics()[-1]["loss"], run.ledger.measured_bytes  # doctest: +SKIP
        >>> print(run.sample("def main", tokens=50))  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = RunFolder(os.fspath(path))
        self.path: Path = self.folder.path

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the logged metrics, ready for `pandas.DataFrame(run.metrics())`.

        Returns:
            A dict for each row, oldest first. A row of training has `step`, `loss`, `step_seconds`, `elapsed_seconds`,
            tokens or examples per second, `resident_bytes`, and metrics of the recipe. A row of an evaluation has
            `step`, `validation_loss` and `elapsed_seconds`.
        """
        return list(read_rows(self.folder.metrics)) if self.folder.metrics.exists() else []

    @property
    def ledger(self) -> RunLedger:
        """Bytes of the run by part, predicted and measured. Prints as a table.

        Raises:
            RunError: The run has no plan yet.
        """
        return ledger_of(self.folder)

    def params(self, step: Step = "best", *, average: bool = True) -> Any:
        """Returns the parameters of a checkpoint, after verifying its checksums.

        Args:
            step: Number of a checkpoint, `last`, or `best` (lowest validation loss, else the last).
            average: Whether to return the EMA weights, if the run keeps them.

        Returns:
            A tree of arrays, as the model has it. If some weights are frozen or are tables, a dict of `trainable` and
            `frozen` or `tables`. Weights that are stored as bits of bfloat16 are bfloat16 arrays. For a run of
            functions that are not here, dicts of arrays by the names of the fields that held them.

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
        """Evaluates a checkpoint on the held-out data, as `plimsoll evaluate` does.

        Args:
            step: Number of a checkpoint, `last`, or `best`.
            raw: Whether to add the metrics of the weights without averaging, for a run with `ema_decay`.
            closed_loop: Only for control: whether to let the model drive the systems. Takes minutes.
            keep_seen: Only for recommend: whether to rank items that a user has already taken, too.
            picture: File (.png or .svg) for a picture: of the journeys with `closed_loop`, of the loss by position for
                longcontext.
            submission: Only for ARC: file (.json) for two attempts at every test input.

        Returns:
            `run`, `step`, and means by name: `loss` in nats, and metrics of the recipe.

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
        """Writes text with the trained model.

        Args:
            prompt: Text to continue. By default the model begins a new document.
            tokens: Most tokens to write; the model may end its document earlier.
            temperature: Divisor of the logits; 0 always takes the likeliest token.
            top_k: Number of likeliest tokens to sample from; 0 for all.
            seed: Seed of the sampling.
            step: Number of a checkpoint, `last`, or `best`.

        Returns:
            The prompt and the text after it.

        Raises:
            PlimsollError: Nothing is saved yet, or the recipe writes no text.
        """
        writing = use.Writing(prompt=prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed)
        return prompt + use.sample(str(self.path), writing, step=str(step))["text"]

    def solve(self, puzzle: str, *, step: Step = "best") -> dict[str, Any]:
        """Solves a puzzle with the trained model.

        Args:
            puzzle: Characters of the puzzle, row after row; a file with them; or `test:17`, an example of the test
                split.
            step: Number of a checkpoint, `last`, or `best`.

        Returns:
            The puzzle and its answer, the steps it took, and whether the answer keeps the rules.

        Raises:
            PlimsollError: The puzzle cannot be read, nothing is saved yet, or the recipe solves no puzzles.
        """
        return use.solve(str(self.path), puzzle, step=str(step))

    def rank(
        self, history: str | Sequence[str | int], *, top: int = 10, keep_seen: bool = False, step: Step = "best"
    ) -> dict[str, Any]:
        """Ranks the items that a user is likely to take next.

        Args:
            history: Items the user has taken, oldest first, by their names in the prepared file: a list, or text
                separated by commas.
            top: Number of items to return.
            keep_seen: Whether to rank the items of the history, too.
            step: Number of a checkpoint, `last`, or `best`.

        Returns:
            The items with their titles and probabilities, likeliest first.

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
        """Writes the trained model for other programs.

        Args:
            path: New folder for the whole model, which `transformers` loads; or a new file that ends in .gguf, which
                llama.cpp and Ollama run.
            adapter: New folder for the adapters of finetune, which `peft` loads.
            gguf_type: Type of the kernels in a .gguf file. By default as the folder would have them.
            step: Number of a checkpoint, `last`, or `best`.

        Returns:
            Place, number of parameters and bytes of each form that was written.

        Raises:
            PlimsollError: A place is taken, nothing is saved yet, or the recipe has no such form.
        """
        places: dict[str, Any] = {"adapter": adapter}
        if path is not None:
            places["gguf" if os.fspath(path).lower().endswith(".gguf") else "merged"] = path
        return write_export(str(self.path), **places, gguf_type=gguf_type, step=str(step))

    def report(self, out: Place = None, *, model: bool = True, closed_loop: bool = False) -> Path:
        """Writes one HTML page about the run, as `plimsoll report` does.

        Args:
            out: File for the page. By default report.html in the run's folder.
            model: Whether to include samples that the trained model makes.
            closed_loop: Only for control: whether to let the model drive the systems. Takes minutes.

        Returns:
            Path of the page.

        Raises:
            PlimsollError: There is nothing to show yet, or the page cannot be written.
        """
        return run_page.write([str(self.path)], out=out, model=model, closed_loop=closed_loop)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all trained parameters, in hexadecimal. Takes seconds, and warns of damaged checkpoints.

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
            raise unknown_attribute("a run", name, dir(self))


def load(path: str | os.PathLike[str]) -> Run:
    """Loads a run that was trained before, finished or not.

    Args:
        path: Folder of the run, or its address in a bucket, from which it is fetched.

    Returns:
        The run.

    Raises:
        RunError: There is no run.

    Example:
        >>> run = plimsoll.load("runs/code")  # doctest: +SKIP
        >>> pandas.DataFrame(run.metrics()).plot("step", "loss")  # doctest: +SKIP
    """
    run = Run(fetched(os.fspath(path)))
    run.folder.read("recipe.json")
    return run
