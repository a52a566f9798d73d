"""What every recipe says: how many examples a step sees, how long it learns, from what, with which optimizer.

No field decides about memory. A recipe is a frozen dataclass that round-trips through JSON; it imports no JAX
(`task` and `optimizer` do, when they are called), so that `--help` and bad input answer at once.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from plimsoll.data import require_sizes
from plimsoll.errors import DataError, RecipeError, as_written
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.foreign import OfLength
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import Count, Named
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import COUNTED, WHOLE, Compute, Source, Storage, Task

if TYPE_CHECKING:
    import optax

    from plimsoll.files.run_folder import RunFolder

Say = Callable[[str], None]

FROM_FILE = "file"
"""Kind of every recipe that is not ours: known by the file it stands in."""

MOST_STEPS = MOST_EXAMPLES = 2**31 - 1
"""The number of a step, and that of an example in its batch, are int32 on the device."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Length of the run and facts about the data, found before training and saved in the run as `data.json`."""

    steps: int
    """Optimizer steps of the whole run, over which the learning rate is scheduled."""
    steps_per_epoch: float | None
    """Optimizer steps per pass over the data; None if its size is unknown, as of a stream with `--steps`."""
    evaluate_every: float | None = None
    """Optimizer steps between evaluations without `--eval-every`; None for each epoch, or each quarter of the run."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Facts such as numbers of documents and tokens, for messages and to open the same data again. JSON."""

    @classmethod
    def read(cls, folder: RunFolder) -> Prepared:
        """Reads what was prepared for a run. Raises PlimsollError if its data.json is not as it was written."""
        with as_written(f"data.json of {folder.path}"):
            return cls(**folder.read("data.json"))

    def __post_init__(self) -> None:
        if self.steps > MOST_STEPS:
            raise RecipeError(
                f"so many --epochs are {self.steps:,} steps, and a run has at most {MOST_STEPS:,}: lower --epochs, or"
                " give --steps"
            )


@dataclass(frozen=True)
class OwnRung:
    """Configuration that `plimsoll ladder` compares, in a list of the recipe's own (`Recipe.ladder`)."""

    name: str
    words: str
    """Description of what it adds to the configuration before, for the table."""
    levers: Mapping[str, Any]
    """Memory-saving options that it adds, by name, to those of the configurations before."""
    fields: Mapping[str, Any]
    """Fields of the recipe that it changes."""
    host: bool = False
    """Whether it moves bytes to host memory, so that it is left out on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Recipe(metaclass=Named):
    """Training problem as a frozen dataclass: model, loss, data and optimizer. Its fields become command-line options.

    A recipe says what is trained. How a step fits into memory is up to the plan that `plimsoll.plan` finds for it.
    `plimsoll.preset` returns a built-in recipe by name, and `plimsoll.recipe` builds one from your own functions.

    Example:
        >>> recipe = plimsoll.preset("code", steps=1_000)
        >>> recipe.effective_batch, isinstance(recipe, plimsoll.Recipe)
        (64, True)
    """

    kind: ClassVar[str] = FROM_FILE
    rate_unit: ClassVar[str] = "examples"
    """Unit of the reported throughput, per second: "tokens" or "examples"."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    """Functions behind `plimsoll evaluate`, `sample`, `export`, `solve` and `rank`, by command. Without an entry,
    `evaluate` reports mean metrics of the validation set, and the other commands refuse the recipe's runs."""
    shown: ClassVar[tuple[Shown, ...]] = ()
    """Parts of the HTML report that are made by the trained model, like sample texts."""

    without_validation: ClassVar[str] = "its data set was too small for one. Train on some hundred documents or more"
    """Clause for error messages: why a run may have no validation set, and what to do about it."""

    validates_with_fillers: ClassVar[bool] = False
    """Whether the last validation batch is padded to full size. If so, each batch has a boolean array "counted", which
    is False for padding."""

    supported: ClassVar[tuple[str, ...]] = ()
    """Levers (memory-saving options) that the model and its loss support, like `precision`, `remat`, `loss_chunk`, and
    `remat_offload` if it wraps its blocks by `levers.remat`. The optimizer says itself what it supports. Both are
    needed for `layerwise`, which requires `remat`."""
    loss_chunks: ClassVar[tuple[int, ...]] = ()
    """Chunk sizes of the chunked loss that the planner tries, in tokens whose logits are in memory at a time. If there
    are some, it tries sizes of its own on an NVIDIA GPU."""
    loss_whole: ClassVar[bool] = True
    """Whether the planner also tries the loss with all logits at once. Users can fix either choice."""

    @property
    def attention_chunks(self) -> tuple[int, ...]:
        """Block sizes that the planner tries for blockwise attention, in tokens, like (256,).

        Blockwise attention never holds the whole matrix of attention scores. Empty if the planner should try only the
        fastest attention kernel.
        """
        return ()

    @property
    def mlp_chunks(self) -> tuple[int, ...]:
        """Chunk sizes that the planner tries for feed-forward (MLP) layers, in tokens of a sequence, like (2048, 512).

        Fewer intermediate activations are then in memory at a time. Empty if the planner should only try the whole
        sequence at once.
        """
        return ()

    @property
    def ladder(self) -> tuple[OwnRung, ...]:
        """Configurations that `plimsoll ladder` compares for this recipe, in order; empty for the default list.

        `plimsoll ladder` trains a few steps of each, and prints a table of memory and speed. An entry adds
        memory-saving options (`levers`) to those of the entries before, and replaces fields of this recipe, like
        OwnRung(name="remat", words="recompute blocks", levers={"remat": "block"}, fields={}).
        """
        return ()

    @property
    def head_columns(self) -> int | None:
        """Size of one attention head (`head_dim`), like 64; None if the model has no attention or it is unknown."""
        return None

    @property
    def normalised_together(self) -> int:
        """Examples that the model looks at together, like batch norm: a micro-batch of each device is a multiple of it.

        1 if the loss is a sum over examples. The effective batch if it has to go through the model at once.
        """
        return 1

    @property
    def layerwise_passes(self) -> int:
        """Number of backward passes of a layer-by-layer training step: 1 or 2; 0 if the recipe supports no such step.

        Such a step updates each layer as soon as its gradient is known, and never holds all gradients at once. A second
        pass is needed if gradients are clipped by their global norm, which must be known before the first update.
        Supported if `supported_levers` has "layerwise" and "remat", and the optimizer supports it, as `plimsoll.AdamW`.
        """
        if not {"layerwise", "remat"} <= {*self.supported_levers} or "layerwise" not in self._settings.levers:
            return 0
        return 2 if self._settings.needs_norm else 1

    gives_way: ClassVar[Mapping[str, Mapping[str, Any]]] = {"steps": {"epochs": None}, "epochs": {"steps": None}}
    """Options that conflict with others. An option's name maps to the fields that are reset when a user passes that
    option, with the values they are reset to (recipes/overrides.py)."""

    best_by: ClassVar[str] = "loss"
    """Validation metric that decides which checkpoint is the best: the lowest "loss", or the highest other metric."""

    tables: ClassVar[tuple[str, ...]] = ()
    """Names of metrics with a number at their end, like `unexplained_12`, that a logged row has as one dict."""

    batch_size: int = 32
    """Examples per optimizer step. The plan splits them into micro-batches that fit the memory; the result is the
    same."""
    gradient_accumulation_steps: int = 1
    """Multiplies --batch-size, as in other trainers. --micro-batch fixes how many examples go through at a time."""
    steps: Count | None = None
    """Optimizer steps of the whole run, over which the learning rate is scheduled. By default --epochs decides."""
    epochs: float | None = None
    """Passes over the data, instead of --steps. By default the recipe's own number."""
    seed: int = 42
    """Seed for the initial parameters, the order of the data, and dropout."""
    ema_decay: float = 0.0
    """Decay per step of an exponential moving average (EMA) of the weights, like 0.999. If set, evaluation and sampling
    use the EMA weights. 0 disables it."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "gradient_accumulation_steps", "steps", "seed"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise RecipeError(f"--{name.replace('_', '-')} must be a whole number, got {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's are whole numbers too, and JSON has none of them
        require_sizes(batch_size=self.batch_size, gradient_accumulation_steps=self.gradient_accumulation_steps)
        if self.effective_batch > MOST_EXAMPLES:
            raise RecipeError(
                f"an effective batch of {self.effective_batch:,} examples (--batch-size x"
                f" --gradient-accumulation-steps) is more than {MOST_EXAMPLES:,}: the number of an example is an int32"
                " on the device. Take a smaller one"
            )
        if self.steps is not None and not 1 <= self.steps <= MOST_STEPS:
            raise RecipeError(f"--steps must be from 1 to {MOST_STEPS:,}, got {self.steps:,}")
        if not 0 <= self.seed < 2**63:
            raise RecipeError(f"--seed must be a whole number from 0 to 2^63 - 1, got {self.seed}")
        if not 0 <= self.ema_decay < 1:
            raise RecipeError(f"--ema-decay must be from 0 (none is kept) to below 1, got {self.ema_decay:g}")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise RecipeError(f"--epochs must be above 0 and finite, got {self.epochs:g}")
        if self.steps is not None and self.epochs is not None:
            raise RecipeError(
                f"--steps {self.steps} and --epochs {self.epochs:g} both set the length of the run: give one of them"
                " (--max-steps only stops early)"
            )

    @property
    def supported_levers(self) -> tuple[str, ...]:
        """Names of the levers (memory-saving options such as "remat") that this recipe supports, given its fields.

        These are the names in `supported`, those of the optimizer, and others that depend on fields: "ema_bits" only if
        `ema_decay` is set.
        """
        of_optimizer = [name for name in self._settings.levers if name != "layerwise"]  # the model must support it, too
        of_average = ["ema_bits"] if self.ema_decay else []
        return (*self.supported, *of_optimizer, *of_average)

    @property
    def _settings(self) -> Optimizer:
        """Settings of the optimizer, for a run of any length."""
        return OfLength(self.optimizer)

    @property
    def effective_batch(self) -> int:
        """Examples per optimizer step, over all devices: `batch_size` times `gradient_accumulation_steps`.

        `batch_size` is a total over all devices, too. The planner splits this number into micro-batches.
        """
        return self.batch_size * self.gradient_accumulation_steps

    def steps_over(self, examples: int, *, called: str, default_epochs: float | None = None) -> tuple[int, float]:
        """Returns the optimizer steps of the whole run, and those of an epoch.

        Args:
            examples: Number of examples to train on.
            called: Name of the data, for messages.
            default_epochs: Length of the run where neither `steps` nor `epochs` says it.

        Raises:
            DataError: There are fewer examples than a batch has.
            RecipeError: Nothing says how long the run is.
        """
        if examples < self.effective_batch:
            raise DataError(
                f"{called} has {examples:,} examples to train on, fewer than the {self.effective_batch:,} of one batch:"
                " lower --batch-size or --gradient-accumulation-steps, or give it more"
            )
        per_epoch = examples / self.effective_batch
        if self.steps is not None:
            return self.steps, per_epoch
        epochs = self.epochs or default_epochs
        if epochs is None:
            raise RecipeError(f"nothing says how long to train on {called}: give --steps or --epochs")
        return max(1, int(epochs * per_epoch)), per_epoch

    @property
    def rate_per_example(self) -> int:
        """Tokens per example if throughput is reported in tokens per second (`rate_unit`), else 1."""
        return 1

    def most(self, option: str) -> tuple[int, str] | None:
        """Returns the upper limit of an option's value, with an explanation.

        `plimsoll plan --largest OPTION` searches for the largest value that fits into memory, up to this limit.

        Args:
            option: Name of a field, like "batch_size" or "seq_len".

        Returns:
            The limit and a phrase that explains it, like (2048, "the tokens that the model was made to read at once").
            None if no limit is known.
        """
        return (MOST_EXAMPLES, "the most examples that a step counts") if option == "batch_size" else None

    @property
    def loss_rows(self) -> int | None:
        """Number of rows of logits per example, which a chunked loss splits; None if unknown.

        For a language model this is the number of tokens per example, since each token has a row of logits.
        """
        return self.rate_per_example if self.rate_unit == "tokens" else None

    @abstractmethod
    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns the shape and dtype of each array in a training batch.

        Args:
            examples: Number of examples in the batch.

        Returns:
            Dict from the array's name to its shape and dtype, like {"x": ((4, 2), "float32")} for 4 examples.
        """

    def evaluation_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns the shape and dtype of each array in a validation batch.

        Args:
            examples: Number of examples in the batch.

        Returns:
            Dict like that of `batch_spec`. If validation batches are padded (`validates_with_fillers`), it also has
            "counted": a boolean array with one value per example, which is False for padding.
        """
        counted = {COUNTED: ((examples,), "bool")} if self.validates_with_fillers else {}
        return self.batch_spec(examples) | counted

    @abstractmethod
    def task(self, compute: Compute) -> Task:
        """Returns the model and its loss as pure functions of parameters and a batch.

        Args:
            compute: Settings of the plan that the model follows, like `compute.precision` and `compute.remat`.

        Returns:
            A `types.Task`: an object with the methods `init` (initial parameters) and `loss`.
        """

    @abstractmethod
    def optimizer(self, steps: int) -> optax.GradientTransformation | Optimizer:
        """Returns the optimizer of a run.

        Args:
            steps: Optimizer steps of the whole run, for the learning-rate schedule.

        Returns:
            An optax transformation, or settings like `plimsoll.AdamW`, whose state can also be stored in 16 or 8 bits.
        """

    def update_rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        """Returns the optimizer as an optax transformation, for weights and optimizer state in a given precision.

        If `ema_decay` is set, it also updates an exponential moving average (EMA) of the weights.

        Args:
            steps: Optimizer steps of the whole run, for the learning-rate schedule.
            storage: Bits per stored number of the weights, the optimizer state and the EMA, like
                `types.Storage(optimizer_bits=8)`. By default all are float32.

        Raises:
            RecipeError: `storage` has fewer than 32 bits for weights or optimizer state, which the optimizer does not
                support.
        """
        settings = self._settings
        if not storage.updates_whole and "optimizer_bits" not in settings.levers:
            raise RecipeError(
                f"--optimizer-bits {storage.optimizer_bits} --weight-bits {storage.weight_bits} need an optimizer that"
                " has such a form, and that of this recipe has none: return plimsoll.AdamW(...), or leave both at 32"
            )
        rule = settings.rule(steps, storage)
        if not self.ema_decay:
            return rule
        from plimsoll.levers.ema import Average
        from plimsoll.optimizers.in_place import in_place

        return in_place(rule, average=Average(self.ema_decay, storage.ema_bits))

    def begin(self, params: Any) -> Any:
        """Returns the parameters that a new run starts from: the random ones, or for example pretrained weights.

        Args:
            params: Randomly initialised parameters. An override may delete their arrays, to save memory.

        Returns:
            Parameters with the same tree structure and shapes. By default `params` itself.
        """
        return params

    @property
    def frozen_is_given(self) -> bool:
        """True if all frozen (not trained) weights come from files that the recipe names, like a pretrained model.

        Checkpoints of the run then do not contain the frozen weights: `given_frozen` loads them from those files.
        """
        return False

    def given_frozen(self, frozen: Any) -> Any:
        """Loads the frozen (not trained) weights from the files that the recipe names, like a pretrained model.

        Called before a checkpoint is loaded if `frozen_is_given` is True, since checkpoints then do not contain them.

        Args:
            frozen: Randomly initialised frozen weights. This method may delete their arrays, to save memory.

        Returns:
            The loaded weights, with the tree structure, shapes and storage format of `frozen`.
        """
        return frozen

    @property
    def begins_with(self) -> str:
        """Source of the initial weights that `begin` returns, like the option "--pretrained", for log messages."""
        return "the recipe's own begin"

    @property
    def evaluation_options(self) -> tuple[str, ...]:
        """Options of `plimsoll evaluate` that this recipe supports: some of raw, closed_loop, keep_seen and submission.

        By default ("raw",) if `ema_decay` is set, else none. `Run.evaluate` describes what the four do.
        """
        return ("raw",) if self.ema_decay else ()

    @abstractmethod
    def prepare(self, folder: Path, say: Say) -> Prepared:
        """Does the one-time work before training, such as training a tokenizer and setting validation data aside.

        Args:
            folder: Folder of the run, where the resulting files are saved.
            say: Function that is called with progress messages, each a string.

        Returns:
            An object with the number of optimizer steps (`steps`), the steps that go once through the training data
            (`steps_per_epoch`, None if unknown) and facts about the data (`facts`, a dict).

        Raises:
            DataError: The data cannot be read, or has too few examples.
        """

    @abstractmethod
    def source(self, folder: Path, *, prefetch: int) -> Source:
        """Returns an endless iterator over training batches of `effective_batch` examples, starting with the first one.

        Args:
            folder: Folder of the run, with the files that `prepare` saved.
            prefetch: Number of batches that a background thread prepares in advance.

        Returns:
            The iterator. `state()` returns its position in the data as a JSON-serialisable dict, and `restore(state)`
            continues from there.
        """

    @abstractmethod
    def validation(self, folder: Path, *, examples: int) -> Iterable[dict[str, Any]]:
        """Returns the validation batches, whose examples are never trained on; empty if there is no validation set.

        Args:
            folder: Folder of the run, with the files that `prepare` saved.
            examples: Number of examples per batch.

        Returns:
            Batches as dicts from the array's name to a NumPy array, as `evaluation_spec` describes them.
        """

    def reported(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the metrics that `plimsoll evaluate` reports, from means over the validation set.

        Args:
            metrics: Mean of each metric over the validation set, by name, like {"loss": 2.1, "accuracy": 0.4}.

        Returns:
            Metrics by name. By default `metrics`; a recipe may rename them or compute others from them.
        """
        return dict(metrics)

    def exhibits(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns further tables and plots for the HTML report, made from the metrics of the last evaluation.

        Args:
            metrics: Mean of each metric over the validation set, by name.
            facts: Facts about the data, as `prepare` returned them.

        Returns:
            A dict for each table or plot, like {"kind": "table", "title": "...", "caption": "...", "header": ["system",
            "R^2"], "rows": [["pendulum", "0.98"]]}. Empty by default. All have a title and a caption. "curves" has
            `x_label`, `y_label`, `x` (list of numbers) and `y` (dict from names to lists of numbers). "texts" has
            `items` with `prompt` and `text`. "grids" has `items` with `name`, `before`, `after` and `said`, each of the
            last three a list of lines.
        """
        return []

    def schedule(self, steps: int) -> Callable[[Any], Any] | None:
        """Returns the learning-rate schedule: a function of the step number, counted from 0; None if unknown.

        Args:
            steps: Optimizer steps of the whole run.

        Returns:
            The schedule of settings like `plimsoll.AdamW`. None for an optax transformation, whose schedule cannot be
            read.
        """
        return self._settings.schedule(steps)

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        """Returns whether a run of `steps` can continue to `longer` steps as if it had been planned that long.

        True if the first `taken` steps have the same learning rates in a run of either length. False if unknown, as for
        optax transformations that `optimizer` builds anew for every length.

        Args:
            steps: Optimizer steps of the run.
            longer: Optimizer steps of the extended run.
            taken: Optimizer steps that the run has taken so far.
        """
        return self._settings.same_beginning(steps, longer, taken=taken)

    @abstractmethod
    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        """Returns the peak host memory of the training data loader in bytes, by component, like {"data": 31457280}.

        Args:
            prepared: Result of `prepare`. If None, nothing is prepared yet, and the bytes are an estimate.
            prefetch: Number of batches that a background thread prepares in advance.
        """

    def host_bytes_beside_accelerator(self, prepared: Prepared | None) -> int:
        """Returns the bytes of host memory that the data loader needs in addition to `host_bytes` on a GPU or TPU.

        The host's CPU cores are free there, so a data loader may run more threads. 0 by default.

        Args:
            prepared: Result of `prepare`; None if nothing is prepared yet.
        """
        return 0

    def data_advice(self) -> str:
        """Returns a phrase that tells users how to reduce the data loader's memory, like "a smaller --batch-size".

        Added to the message of BudgetError if a smaller data loader could make the run fit. Empty if nothing helps.
        """
        return ""

    def data_changed(self, prepared: Prepared) -> None:
        """Checks, as far as the recipe can tell, that its data is still what `prepare` has seen.

        Args:
            prepared: Result of `prepare` at the start of the run.

        Raises:
            DataError: It is different data. Changes that only a complete read would find may go unnoticed.
        """

    def tokenises_while_training(self, prepared: Prepared) -> bool:
        """Returns whether every process of a run tokenises all of the text, for its own rows, as training goes.

        Args:
            prepared: Result of `prepare` at the start of the run.
        """
        return False

    def training_data_changed(self, prepared: Prepared) -> None:
        """Checks, before training starts or resumes, that the training data is still what `prepare` has seen.

        By default it is `data_changed`, which evaluation uses too. Recipes override it to check files that only
        training reads.

        Args:
            prepared: Result of `prepare` at the start of the run.

        Raises:
            DataError: It is different data.
        """
        self.data_changed(prepared)

    def without_data(self, prepared: Prepared) -> Self:
        """Returns this recipe without its data files, to use the trained model where the data is missing.

        Args:
            prepared: Result of `prepare`, for sizes that the model takes from the data, like that of the vocabulary.

        Returns:
            A recipe with the same model. By default this recipe itself.
        """
        return self

    def imports(self) -> tuple[str, ...]:
        """Returns the names of the Python modules that the data loader imports, like ("h5py",).

        The planner imports them, too, to measure the memory they take.
        """
        return ()


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Recipe together with fixed memory-saving options; `plan`, `train` and `loader` take it in place of a recipe."""

    recipe: Recipe
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Memory-saving options ("levers") with the values that the planner must keep, by name. The argument `pins` of
    `plimsoll.plan` and `plimsoll.train` takes precedence over these."""


@dataclass(frozen=True, kw_only=True)
class AdamWRecipe(Recipe):
    """A recipe whose optimizer is AdamW, with its settings as options; subclasses have defaults of their own."""

    learning_rate: float = 5e-4
    """Peak learning rate, reached at the end of warm-up."""
    warmup_steps: int | None = None
    """Optimizer steps over which the learning rate rises from 0 to its peak. By default --default-warmup-steps, and at
    most a tenth of the run."""
    default_warmup_steps: int | None = 100
    """Optimizer steps of the warm-up in a long run, if --warmup-steps is not given."""
    weight_decay: float = 0.01
    """AdamW's weight decay, multiplied by the learning rate; applied to matrices and embeddings, not to norms."""
    beta2: float = 0.999
    """AdamW's decay rate of the second moment."""
    clip_norm: float = 1.0
    """Largest global norm of a step's gradient; larger ones are scaled down to it. 0 for no clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.optimizer(1)  # its own checks

    def optimizer(self, steps: int) -> AdamW:
        return AdamW(
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            default_warmup_steps=self.default_warmup_steps,
            weight_decay=self.weight_decay,
            beta2=self.beta2,
            clip_norm=self.clip_norm,
        )
