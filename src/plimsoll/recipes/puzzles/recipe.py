"""Solve puzzles with a Tiny Recursive Model: Sudoku, mazes, ARC.

    plimsoll prepare sudoku --out data/sudoku
    plimsoll train   sudoku-mlp --data data/sudoku --memory 4GiB

Defaults are those published for Sudoku-Extreme (https://arxiv.org/abs/2510.04871 and its code); the presets are in
recipes/puzzles/presets.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from plimsoll.data import require_sizes
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of, require_same
from plimsoll.recipes.base import Count, Prepared, Recipe, Say
from plimsoll.recipes.puzzles.optimizer import TrmOptimizer
from plimsoll.recipes.puzzles.trm_shape import TRMShape, Variant
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import Compute, Source, Task
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.puzzles.dataset import PuzzleSet

T = TypeVar("T", TRMShape, TrmOptimizer)

READER_BYTES = 4 * MIB
"""NumPy's reader and its generators, and what small arrays leave in the heap."""
BATCHES = 3
"""Besides those made ahead: one in the making, one taken, and the step's own copy of it."""
LONG = 512
"""Positions beyond which attention in blocks needs fewer bytes and is no slower (levers/attention.py)."""


@dataclass(frozen=True, kw_only=True)
class Puzzles(Recipe):
    """A Tiny Recursive Model on a set of puzzles in the published format."""

    kind: ClassVar[str] = "puzzles"
    validates_with_fillers: ClassVar[bool] = True
    without_validation: ClassVar[str] = "it was trained with --validation-examples 0. Train with more"
    verbs: ClassVar[Mapping[str, Verb]] = {
        "evaluate": Verb(answer="plimsoll.recipes.puzzles.arc_votes:evaluate"),
        "solve": Verb(
            answer="plimsoll.recipes.puzzles.solve:solve",
            ask="plimsoll.recipes.puzzles.question:question",
            text="plimsoll.recipes.puzzles.text:solution_text",
        ),
    }
    shown: ClassVar[tuple[Shown, ...]] = (
        Shown(
            words="what it solves",
            make="plimsoll.recipes.puzzles.solve:shown",
            command="plimsoll solve {run} test:0",
        ),
    )
    supported: ClassVar[tuple[str, ...]] = ("precision", "activations", "unroll", "remat")

    data: str = ""
    """Folder with puzzles: what `plimsoll prepare sudoku`, `maze` or `arc` writes, or another in the published format.
    Planning needs none."""
    seq_len: int = 81
    """Tokens of a puzzle, as the data set has them."""
    vocab_size: Count = 11
    """Different tokens, as the data set has them."""
    identifiers: Count = 1
    """Most rows of the table of puzzle embeddings. A data set with fewer puzzle identifiers has a smaller table."""
    validation_examples: Count | None = None
    """Examples of the test split to evaluate on while training, from its beginning. By default all."""

    variant: Variant = "mlp"
    """Layer that mixes the positions of a puzzle: a feed-forward part across them (mlp), or attention with rotary
    position encoding."""
    width: int = 512
    """Width of the latent states, a multiple of --heads."""
    heads: int = 8
    """Number of attention heads."""
    layers: int = 2
    """Number of blocks in the module that is applied recursively."""
    high_cycles: int = 3
    """Updates of the high latent state in a supervision step; gradients flow through the last one."""
    low_cycles: int = 6
    """Updates of the low latent state for each update of the high one."""
    puzzle_positions: int = 16
    """Positions before the tokens that hold the puzzle's embedding."""

    halt_max_steps: int = 16
    """Most supervision steps of a puzzle; evaluation always takes this many."""
    halt_exploration: float = 0.1
    """Share of puzzles per step that continue for a random number of steps, even if the model would halt."""

    batch_size: int = 768
    default_epochs: Count = 50_000
    """Epochs of a run without --steps and --epochs. An epoch is one random puzzle of every group."""
    eval_interval: Count = 5_000
    """Epochs between evaluations."""
    learning_rate: float = 1e-4
    """Learning rate after warm-up. It stays constant unless --final-fraction is below 1."""
    warmup_steps: int | None = None
    """Optimizer steps over which the learning rates rise from 0 to their peak. By default --default-warmup-steps, and
    at most a tenth of the run."""
    default_warmup_steps: int | None = 2_000
    """Optimizer steps of the warm-up in a long run, if --warmup-steps is not given."""
    final_fraction: float = 1.0
    """Share of both learning rates that is left at the last step of a cosine decay; 1 keeps them constant."""
    weight_decay: float = 1.0
    """Weight decay, multiplied by the learning rate; applied to every weight but the puzzle embeddings."""
    beta1: float = 0.9
    """Decay rate of the first moment."""
    beta2: float = 0.95
    """Decay rate of the second moment."""
    puzzle_learning_rate: float = 1e-4
    """Learning rate of the puzzle embeddings."""
    puzzle_weight_decay: float = 1.0
    """Weight decay of the puzzle embeddings, applied to the rows that a step reads."""
    ema_decay: float = 0.999
    seed: int = 0
    """Seed for the initial parameters, the order of the data, and exploration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data:  # a run is continued and evaluated from other folders, too
            object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))

        # Bounds: those of the shape and of the optimizers are checked by themselves.
        counts = ("seq_len", "vocab_size", "identifiers", "halt_max_steps", "default_epochs", "eval_interval")
        require_sizes(**{name: getattr(self, name) for name in counts})
        require_sizes(least=0, validation_examples=self.validation_examples)
        if not 0 <= self.halt_exploration <= 1:
            raise RecipeError(f"--halt-exploration must be from 0 to 1, got {self.halt_exploration:g}")
        _ = self.optimizer(1), self._shape(self.identifiers)

    @cached_property
    def shape(self) -> TRMShape:
        """Shape of the model, with a table for the data set where one is named."""
        return self._shape(self.training_set.identifiers if self.data else self.identifiers)

    def _shape(self, identifiers: int) -> TRMShape:
        return self._part(TRMShape, vocab=self.vocab_size, length=self.seq_len, identifiers=identifiers)

    def _part(self, kind: type[T], **others: Any) -> T:
        """Returns settings with the recipe's values where both have fields of one name, but for the `others`."""
        own = {field.name: getattr(self, field.name) for field in fields(kind) if hasattr(self, field.name)}
        return kind(**own | others)

    @property
    def supported_levers(self) -> tuple[str, ...]:
        return (*super().supported_levers, *(["attention_chunk"] if self.variant == "attention" else []))

    @property
    def evaluation_options(self) -> tuple[str, ...]:
        return (*super().evaluation_options, *(["submission"] if self.arc_tasks.is_file() else []))

    @property
    def arc_tasks(self) -> Path:
        """Tasks of a data set of ARC, as they were published; other data sets have no such file beside their splits."""
        return Path(self.data) / "test_puzzles.json"

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        return (256,) if self.variant == "attention" and self.shape.whole_length > LONG else ()

    @property
    def head_columns(self) -> int | None:
        return self.width // self.heads if self.variant == "attention" else None

    @cached_property
    def training_set(self) -> PuzzleSet:
        return self._opened("train")

    @property
    def test_set(self) -> PuzzleSet:
        return self._opened("test")

    def _opened(self, split: Literal["train", "test"]) -> PuzzleSet:
        """Returns a split of --data; one that does not fit the model is refused."""
        from plimsoll.recipes.puzzles.dataset import PuzzleSet
        from plimsoll.recipes.puzzles.family import FAMILY
        from plimsoll.recipes.puzzles.text import form_of

        if not self.data:
            form = form_of(seq_len=self.seq_len, vocab_size=self.vocab_size)
            made = FAMILY.prepares["sudoku" if form is None else form.kind]
            raise RecipeError(f"--data is missing: name a folder of puzzles, like that which `{made.example}` makes")
        puzzles = PuzzleSet(self.data, split)
        is_same = (puzzles.seq_len, puzzles.vocab_size) == (self.seq_len, self.vocab_size)
        if not is_same or puzzles.identifiers > self.identifiers:
            raise DataError(
                f"{puzzles.folder / split} has puzzles of --seq-len {puzzles.seq_len} --vocab-size"
                f" {puzzles.vocab_size} --identifiers {puzzles.identifiers}, and the recipe has {self.seq_len},"
                f" {self.vocab_size} and {self.identifiers} at most. Take the preset of these puzzles (`plimsoll"
                " recipes`), or give those options"
            )
        return puzzles

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        tokens = ((examples, self.seq_len), "int32")
        return {"inputs": tokens, "labels": tokens, "puzzle_identifiers": ((examples,), "int32")}

    def task(self, compute: Compute) -> Task:
        from plimsoll.recipes.puzzles.act import Halting, RecursiveSolver

        halting = Halting(max_steps=self.halt_max_steps, exploration=self.halt_exploration)
        return RecursiveSolver(self.shape, compute, halting)

    def optimizer(self, steps: int) -> TrmOptimizer:
        return self._part(TrmOptimizer)

    def prepare(self, folder: Path, say: Say) -> Prepared:
        # All of the data is read, so that what is damaged is found now and not during training.
        training = self.training_set
        test = self.test_set
        training.check()
        test.check()

        # Length.
        steps = self.steps or self._batches_of(self.default_epochs if self.epochs is None else self.epochs)
        if steps < 1:
            raise DataError(
                f"{self.data} has {training.groups:,} groups of puzzles, and --epochs of one puzzle each do not fill a"
                f" batch of {self.effective_batch:,}: give --steps, more --epochs, or a lower --batch-size"
            )

        # Facts.
        description = f"{training.puzzles:,} puzzles in {training.groups:,} groups, {training.examples:,} examples"
        say(f"data: {description} in {self.data}; {test.examples:,} test examples; {steps:,} steps")
        facts = {
            "description": description,
            "groups": training.groups,
            "identifiers": training.identifiers,
            "test_examples": test.examples,
            "arrays": self._facts().to_json(),
        }
        return Prepared(
            steps=steps,
            steps_per_epoch=training.groups * training.mean_puzzle_examples / self.effective_batch,
            evaluate_every=max(1, self._batches_of(self.eval_interval)),
            facts=facts,
        )

    def _batches_of(self, epochs: float) -> int:
        """Returns the batches of so many epochs: exact if all puzzles have as many examples, else the expected number.

        For the epochs of a whole run it is the published number of steps: 65,104 for 50,000 epochs of 1,000 groups in
        batches of 768.
        """
        training = self.training_set
        return int(epochs * training.groups * training.mean_puzzle_examples / self.effective_batch)

    def data_changed(self, prepared: Prepared) -> None:
        require_same(self.data, prepared.facts["arrays"], self._facts())

    def without_data(self, prepared: Prepared) -> Puzzles:
        return replace(self, data="", identifiers=prepared.facts["identifiers"])

    def _facts(self) -> Facts:
        return facts_of(sorted(Path(self.data).expanduser().glob("*/*.npy")))

    def source(self, folder: Path, *, prefetch: int) -> Source:
        from plimsoll.recipes.puzzles.sampler import PuzzleLoader

        return PuzzleLoader(
            self.training_set,
            batch_size=self.effective_batch,
            seed=self.seed,
            epochs_per_iteration=self.eval_interval,
            prefetch=prefetch,
        )

    def validation(self, folder: Path, *, examples: int) -> Iterable[dict[str, Any]]:
        return self.test_set.test_batches(examples, most=self.validation_examples)

    def reported(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns shares of puzzles and of tokens, and the supervision steps taken."""
        return {
            "exact_accuracy": metrics["exact_accuracy"],
            "token_accuracy": metrics["accuracy"],
            "q_halt_accuracy": metrics["q_halt_accuracy"],
            "mean_steps": metrics["supervision_steps"],
            "loss": metrics["loss"],
        }

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        """Returns the bytes of the source; without data, those of batches alone."""
        batch = 4 * self.effective_batch * (2 * self.seq_len + 1)
        held = self.training_set.held_bytes() if self.data else 0
        return {"data": READER_BYTES + held + (prefetch + BATCHES) * batch}
