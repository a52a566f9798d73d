"""Training runs in Python: `plimsoll.train`, `plimsoll.load`, and the class `Run` to use them. Imports no JAX."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.api import follow, run_page, use
from plimsoll.api.follow import OnLog
from plimsoll.api.messages import Say
from plimsoll.api.run_facts import ShownLedger, ledger_of, run_row
from plimsoll.api.use import Place
from plimsoll.files.bucket import fetched
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.own.pickled import is_here, is_pickled
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.report.layout import UNKNOWN, format_known_bytes, known
from plimsoll.report.metrics import read_rows

Step = int | str


class Run:
    """Training run on disk: its metrics, checkpoints and memory. `plimsoll.train` and `plimsoll.load` return it.

    Reading is safe while the run is still training. `params` imports JAX into this process; the other methods that need
    the model start a process of their own.

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
        """Returns the logged metrics as a list of dicts, oldest first, ready for `pandas.DataFrame(run.metrics())`.

        Returns:
            Training rows with `step`, `loss`, `step_seconds` (mean since the row before), `elapsed_seconds`,
            `tokens_per_second` (or `examples_per_second`; over all devices), and metrics of the recipe. Memory in use
            when the row is logged is `resident_bytes` (host memory of the training process) and on a GPU `device_bytes`
            (of the fullest GPU). The peaks until then are `peak_resident_bytes` and `peak_device_bytes`. Evaluation
            rows have `step`, `validation_loss` and `elapsed_seconds`.
        """
        return list(read_rows(self.folder.metrics))

    @property
    def ledger(self) -> ShownLedger:
        """Peak memory per device in bytes: predicted by the planner, and measured in training. Prints as a table.

        Its attributes are `budget_bytes`, `predicted_bytes`, `measured_bytes` (None until a training session has ended)
        and `parts`: a dict like {"parameters": {"predicted": 5000, "measured": 5000}, ...}.

        Raises:
            RunError: The run has no plan yet.
        """
        return ledger_of(self.folder)

    def params(self, step: Step = "best", *, average: bool = True) -> Any:
        """Loads the model's parameters from a checkpoint, and verifies its checksums.

        Args:
            step: Step number of a checkpoint, "last", or "best" (best validation metric; the last one if the run was
                never evaluated).
            average: Whether to return the exponential moving average (EMA) of the weights, if the run keeps it.

        Returns:
            A pytree of arrays, as the recipe's `init` returns it. It is a dict with the keys `trainable` and `frozen`
            if some weights are frozen, or `trainable` and `tables` if embedding tables are updated row by row. If the
            code of the recipe's functions is not available here, nested dicts replace the classes of the pytree.

        Raises:
            CheckpointError: The run has no such checkpoint, or it is damaged.
        """
        saved = self.folder.read("recipe.json")
        self.folder.require_saved()
        from plimsoll.inference.trained import Trained, params_without_code

        if is_pickled(saved) and not is_here(saved):
            params = params_without_code(self.folder, step=str(step), average=average)
        else:
            params = Trained(str(self.path), step=str(step)).params(average=average)
        return params["trainable"] if params.keys() == {"trainable"} else params

    def evaluate(
        self,
        step: Step = "best",
        *,
        raw: bool = False,
        closed_loop: bool = False,
        keep_seen: bool = False,
        submission: Place = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint on the validation set, as `plimsoll evaluate` does.

        Args:
            step: Step number of a checkpoint, "last", or "best" (best validation metric).
            raw: Whether to also evaluate the weights without averaging. Only for runs with `ema_decay`, whose EMA
                weights are evaluated by default.
            closed_loop: Whether to let the model control simulated systems, which takes minutes. Only for the recipe
                "control".
            keep_seen: Whether to rank all items, even those a user has already taken. Only for the recipe "recommend".
            submission: File (.json) to write two attempts at every test input to. Only for the recipe "arc".

        Returns:
            A dict with `run`, `step`, and mean metrics by name, like {"loss": 2.1, "perplexity": 8.2, "tokens": 50000}.
            The loss of a language model is in nats per token. Which metrics there are depends on the recipe.

        Raises:
            PlimsollError: No checkpoint is saved yet, the run has no validation set, or its recipe does not support an
                option.
        """
        return self._use("evaluate", step, raw=raw, closed_loop=closed_loop, keep_seen=keep_seen, submission=submission)

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
        """Generates text with the trained language model.

        Args:
            prompt: Text to continue. By default the model begins a new document.
            tokens: Maximum number of tokens to generate; the model may end its document earlier.
            temperature: Divisor of the logits; 0 always takes the most likely token.
            top_k: Number of most likely tokens to sample from; 0 for all.
            seed: Random seed of the sampling.
            step: Step number of a checkpoint, "last", or "best" (lowest validation loss).

        Returns:
            The prompt followed by the generated text.

        Raises:
            PlimsollError: No checkpoint is saved yet, or the run's recipe does not train a language model.
        """
        answer = self._use(
            "sample", step, prompt=prompt, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
        )
        return prompt + answer["text"]

    def solve(self, puzzle: str, *, step: Step = "best") -> dict[str, Any]:
        """Solves a puzzle with the trained model. Only for runs of the recipes "sudoku", "maze" and "arc".

        Args:
            puzzle: "test:17" for example 17 of the test split. Except for ARC, also the puzzle's characters row by row
                (a Sudoku has "." or "0" for empty cells), or the path of a file with them.
            step: Step number of a checkpoint, "last", or "best" (best validation metric).

        Returns:
            A dict. `puzzle` and `answer` are lists of rows, `supervision_steps` is the number of refinement steps, and
            `valid` tells whether a Sudoku or maze is solved by the rules (`why_not` if not). `right` compares a test
            example with its known solution.

        Raises:
            PlimsollError: The puzzle cannot be read, no checkpoint is saved yet, or the recipe solves no puzzles.
        """
        return self._use("solve", step, puzzle=puzzle)

    def rank(
        self, history: str | Sequence[str | int], *, top: int = 10, keep_seen: bool = False, step: Step = "best"
    ) -> dict[str, Any]:
        """Ranks the items that a user is likely to take next, with the trained model. Only for the recipe "recommend".

        Args:
            history: Items that the user has taken, oldest first, by their ids in the original data: a list, or text
                separated by commas.
            top: Number of items to return.
            keep_seen: Whether to rank the items of the history, too.
            step: Step number of a checkpoint, "last", or "best" (highest validation metric).

        Returns:
            A dict. `items` is a list, most likely first, of dicts with `id`, `original` (the id in the original data),
            `probability` and `score` (its logarithm). `history` lists the items of the history likewise.

        Raises:
            PlimsollError: An item is unknown, no checkpoint is saved yet, or the recipe ranks no items.
        """
        typed = history if isinstance(history, str) else ",".join(map(str, history))
        return self._use("rank", step, history=typed, top=top, keep_seen=keep_seen)

    def export(
        self,
        path: Place = None,
        *,
        adapter: Place = None,
        step: Step = "best",
    ) -> dict[str, Any]:
        """Exports the trained language model to the formats of other programs.

        Args:
            path: New folder for the complete model in the Hugging Face format, which `transformers` loads.
            adapter: New folder for LoRA adapters alone, which `peft` loads. Only for the recipe "finetune".
            step: Step number of a checkpoint, "last", or "best" (lowest validation loss).

        Returns:
            A dict with `run`, `step`, and an entry for each format written: `merged` (Hugging Face) or `adapter`.
            An entry is a dict like {"out": "/models/mine", "parameters": 1300000, "bytes": 5200000}.

        Raises:
            PlimsollError: A file exists already, no checkpoint is saved yet, or the recipe has no such format.
        """
        return self._use("export", step, adapter=adapter, merged=path)

    def report(self, out: Place = None, *, model: bool = True, closed_loop: bool = False) -> Path:
        """Writes a report of the run as one HTML file (loss curves, memory, samples), as `plimsoll report` does.

        Args:
            out: File to write. By default report.html in the run's folder.
            model: Whether to load the trained model and include its outputs, like sample texts.
            closed_loop: Whether to let the model control simulated systems, which takes minutes. Only for the recipe
                "control".

        Returns:
            Path of the HTML file.

        Raises:
            PlimsollError: The run has nothing to show yet, or the file cannot be written.
        """
        return run_page.write(str(self.path), out=out, model=model, closed_loop=closed_loop)

    def train(
        self,
        *,
        memory: str | float | None = None,
        max_steps: int | None = None,
        quiet: bool = False,
        on_log: OnLog | None = None,
        **options: Any,
    ) -> Run:
        """Continues the training of this run with its own recipe and plan, as `plimsoll resume` does.

        By default, `eval_every`, `save_every`, `log_every` and `patience` keep their values of the latest session.

        Some options of the recipe can be changed: the length (`steps` or `epochs`), `learning_rate`, and the data
        (`dataset_id` or `data`): other data, or the same in another place. Other data is read from its beginning, with
        the run's own tokenizer. The report and the ledger list the changes.

        Args:
            memory: Memory budget per device. By default that of the plan.
            max_steps: Optimizer step at which to stop early.
            quiet: Whether to print only warnings and the result.
            on_log: Function that is called with each new row of metrics.
            options: Other options of `plimsoll.train`, and changed options of the recipe.

        Returns:
            This run.

        Raises:
            RunError: An option cannot be changed, or the folder is no run.
            DataError: The model cannot read the other data, like text that was packed with another tokenizer.
            RecipeError: The recipe consists of functions of another Python program, or an option is unknown.

        Example:
            >>> plimsoll.load("runs/code").train(steps=900)  # doctest: +SKIP
        """
        chosen = {"memory": memory, "max_steps": max_steps, "quiet": quiet, **options}
        follow.resume(str(self.path), chosen, on_log=on_log)
        return self

    @property
    def fingerprint(self) -> str:
        """SHA-256 hash of the newest checkpoint, in hexadecimal, to compare two runs bit by bit. Takes seconds.

        It covers parameters, optimizer state, EMA, step, random state and position in the data. Damaged checkpoints are
        skipped with a Python warning.

        Raises:
            CheckpointError: No checkpoint is saved yet, or all are damaged.
        """
        answer = use.fingerprint(str(self.path))
        for note in answer["notes"]:
            warnings.warn(f"{note}; the newest whole one is of step {answer['step']:,}", stacklevel=2)
        return answer["fingerprint"]

    def _use(self, verb: str, step: Step, **options: Any) -> dict[str, Any]:
        """Runs a command like `evaluate` (a key of `use.USES`) on a checkpoint, and returns its answer."""
        return use.use(verb, str(self.path), use.USES[verb](step=str(step), **options))

    def __repr__(self) -> str:
        # Show a dash for values that cannot be read.
        row = run_row(self.path, name=self.path.name)
        sizes = ("predicted_bytes", "peak_bytes", "budget_bytes")
        predicted, measured, budget = (format_known_bytes(row.get(size)) for size in sizes)
        return (
            f"Run(recipe: {row.get('recipe') or UNKNOWN}, steps: {known(row.get('step'), ',')} of"
            f" {known(row.get('steps'), ',')}, {row['state']}, loss: {known(row.get('loss'), '.4f')}, predicted:"
            f" {predicted}, measured: {measured}, budget: {budget}, path: {self.path})"
        )


def load(path: str | os.PathLike[str]) -> Run:
    """Opens a training run on disk, finished or not.

    Args:
        path: Folder of the run, or its URL in a bucket (s3:// or gs://), from which it is copied to the local cache.

    Returns:
        The run.

    Raises:
        RunError: No run exists at `path`.

    Example:
        >>> run = plimsoll.load("runs/code")  # doctest: +SKIP
        >>> pandas.DataFrame(run.metrics()).plot("step", "loss")  # doctest: +SKIP
    """
    run = Run(fetched(os.fspath(path)))
    run.folder.read("recipe.json")
    return run


def train(
    recipe: Recipe | Pinned | str,
    *,
    memory: str | float | None = None,
    chip: str | None = None,
    run: str | os.PathLike[str] | None = None,
    max_steps: int | None = None,
    pins: Mapping[str, Any] | None = None,
    quiet: bool = False,
    name: str | None = None,
    on_log: OnLog | None = None,
    say: Say | None = None,
    **options: Any,
) -> Run:
    """Trains a recipe within a memory budget, in a separate process. If the run exists, continues it.

    Args:
        recipe: A recipe (training problem), the name of a preset like "code", or the path of a Python file with a
            recipe.
        memory: Memory budget per device: bytes, or text like "768MiB" or "2GB". By default the memory of the GPU or TPU
            that is free now, or on a CPU the machine's free memory less a safety margin.
        chip: Device to train on, by its name in `plimsoll chips`. By default the GPU or TPU that JAX finds, else the
            CPU.
        run: Folder of the run, for checkpoints and logs, or its URL in a bucket (s3:// or gs://). By default
            runs/RECIPE.
        max_steps: Optimizer step at which to stop early. The learning-rate schedule is still that of the whole run.
        pins: Memory-saving options ("levers") to fix, by name, like {"micro_batch": 8}. The planner chooses the rest.
        quiet: Whether to print only warnings and the result.
        name: Name of the recipe in messages and in the default folder.
        on_log: Function that is called with each new row of metrics, a dict as in `Run.metrics`. If it raises an
            exception, training saves and stops, and the exception is raised here.
        say: Function that is called with messages of the planner, each a string. By default they are printed, unless
            `quiet`.
        options: Other options of `plimsoll train` (`log_every`, `save_every`, `eval_every`, `tracker`, ...) and of the
            recipe (`dataset_id`, `steps`, `batch_size`, ...), with underscores. `patience=3` is early stopping: it ends
            training after 3 evaluations in a row without a lower validation loss.

    Returns:
        The run, finished or stopped early; `Run.params` has its best checkpoint.

    Raises:
        RecipeError: An option is unknown, or contradicts another.
        BudgetError: No plan fits the budget.
        StoppedError: Training stopped itself, for example because the loss became NaN.
        PlimsollError: The request is invalid, or the training process fails. Saved checkpoints stay intact.
        KeyboardInterrupt: Training was interrupted. It has saved a checkpoint, and the same call continues.

    Example:
        >>> run = plimsoll.train("code", memory="768MiB", run="runs/code", max_steps=200)  # doctest: +SKIP
        >>> run.evaluate()["loss"]  # doctest: +SKIP
    """
    options |= {"memory": memory, "chip": chip, "run": run, "max_steps": max_steps, "pins": pins}
    return Run(follow.train(recipe, {**options, "quiet": quiet, "name": name}, on_log=on_log, say=say))
