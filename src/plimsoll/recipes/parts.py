"""The parts of a recipe, and the values that pass between them. Imports neither JAX nor NumPy.

    model.needs()  --Needs-->    data.spec(needs)  --Spec-->  model.task(spec, compute)
    length         --Reading-->  data.prepare(reading), data.source(reading), data.validation(reading)

A recipe may combine any model with any data that gives specs of the class that the model reads (specs.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from plimsoll.errors import DataError, RecipeError, as_written
from plimsoll.files.facts import Facts, require_same
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import Count, Interval, Part, PositiveFloat, PositiveInt, Seed, flag_of
from plimsoll.recipes.specs import Spec, spec_of
from plimsoll.recipes.verbs import Shown, Verb, resolved
from plimsoll.types import Compute, Source, Task

if TYPE_CHECKING:
    from plimsoll.files.run_folder import RunFolder
    from plimsoll.optimizers.sign_sgd import RowRule

Say = Callable[[str], None]
Batch = Mapping[str, Any]

NO_SPEC = Spec(arrays={})
MOST_STEPS = MOST_EXAMPLES = 2**31 - 1
"""Most optimizer steps of a run, and most examples of a batch: both numbers are int32 on the device."""


@dataclass(frozen=True, kw_only=True)
class Length(Part):
    """Examples per step, and the length of a run."""

    group = "length"
    gives_way: ClassVar = {"steps": {"epochs": None}, "epochs": {"steps": None}}

    batch_size: PositiveInt = 32
    """Examples per optimizer step. The plan splits them into micro-batches that fit the memory; the result is the
    same."""
    gradient_accumulation_steps: PositiveInt = 1
    """Multiplies --batch-size, as in other trainers. --micro-batch fixes the examples per forward pass."""
    steps: Annotated[Count | None, Interval(ge=1, le=MOST_STEPS)] = None
    """Optimizer steps of the whole run, over which the learning rate is scheduled. By default --epochs decides."""
    epochs: PositiveFloat | None = None
    """Passes over the data, instead of --steps. By default --default-epochs."""
    default_epochs: PositiveFloat | None = None
    """Passes over the data of a run without --steps and --epochs."""
    seed: Seed = 42
    """Seed for the initial parameters, the order of the data, and dropout."""

    def check_options(self) -> None:
        if self.effective_batch > MOST_EXAMPLES:
            raise RecipeError(
                f"an effective batch of {self.effective_batch:,} examples (--batch-size x"
                f" --gradient-accumulation-steps) is more than {MOST_EXAMPLES:,}: the number of an example is an int32"
                " on the device. Take a smaller one"
            )
        if self.steps is not None and self.epochs is not None:
            raise RecipeError(
                f"--steps {self.steps} and --epochs {self.epochs:g} both set the length of the run: give one of them"
                " (--max-steps only stops early)"
            )

    @property
    def effective_batch(self) -> int:
        """Examples per optimizer step, over all devices."""
        return self.batch_size * self.gradient_accumulation_steps

    def epochs_of(self, data: str) -> float:
        """Returns the number of passes over the data of a run without --steps.

        Args:
            data: Name of the data, for messages.

        Raises:
            RecipeError: Neither --epochs nor --default-epochs is set.
        """
        epochs = self.epochs or self.default_epochs
        if epochs is None:
            raise RecipeError(f"nothing says how long to train on {data}: give --steps or --epochs")
        return epochs

    def prepared_for(
        self, examples: int, *, data: str, facts: Mapping[str, Any], seq_len: int | None = None
    ) -> Prepared:
        """Returns the optimizer steps of the whole run and those of an epoch, with facts about the data.

        Args:
            examples: Number of examples to train on.
            data: Name of the data, for messages.
            facts: Value of `Prepared.facts`.
            seq_len: Tokens of an example if --seq-len determines the number of examples.

        Raises:
            DataError: The data has fewer examples than a batch.
            RecipeError: The run's length is not set, or is less than one step.
        """
        batch = self.effective_batch
        if examples < batch:
            unit, options = "examples", "--batch-size or --gradient-accumulation-steps"
            if seq_len is not None:
                unit, options = f"sequences of {seq_len:,} tokens", "--batch-size or --seq-len"
            raise DataError(
                f"{data} has {examples:,} {unit} to train on, fewer than the {batch:,} of one batch: lower {options},"
                " or give it more"
            )
        per_epoch = examples / batch
        if self.steps is not None:
            return Prepared(steps=self.steps, steps_per_epoch=per_epoch, facts=facts)
        epochs = self.epochs_of(data)
        if epochs * per_epoch < 1:
            # The suggested number is rounded up to three digits, so that it is enough.
            raise RecipeError(
                f"--epochs {epochs:g} of the {examples:,} examples in {data} is less than one step of {batch:,}: give"
                f" --epochs {1.005 / per_epoch:.3g} or more, or --steps"
            )
        return Prepared(steps=int(epochs * per_epoch), steps_per_epoch=per_epoch, facts=facts)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a model on its data, known before any data is opened."""

    vocabulary: int | None = None
    """Vocabulary size: of the published model, or the default for a tokenizer to train. None if any is suitable."""
    tokenizer: str | None = None
    """Published model whose tokenizer encodes the text; None for a tokenizer that is trained on the data."""
    longest: int | None = None
    """Most tokens that the model can read at once; None if there is no limit."""

    def require_readable(self, seq_len: int) -> None:
        """Raises RecipeError for more tokens than the model was made to read at once."""
        if self.longest is not None and seq_len > self.longest:
            raise RecipeError(
                f"--seq-len {seq_len:,} is more than the {self.longest:,} tokens that --pretrained was made to read at"
                " once: lower it to that, or name a model that reads more"
            )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings by which a run reads its data."""

    needs: Needs
    length: Length
    folder: Path = Path()
    """Folder of the run, with its prepared files."""

    @property
    def batch_size(self) -> int:
        """Examples of a batch, over all devices."""
        return self.length.effective_batch

    @property
    def seed(self) -> int:
        return self.length.seed

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts about the data in the run's data.json (`Prepared.facts`); empty before it is written."""
        from plimsoll.files.run_folder import RunFolder

        run = RunFolder(self.folder)
        return run.read("data.json")["facts"] if run.has("data.json") else {}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Length of the run and facts about the data, found before training and saved in the run as `data.json`."""

    steps: int
    """Optimizer steps of the whole run, over which the learning rate is scheduled."""
    steps_per_epoch: float | None
    """Optimizer steps per pass over the data; None if its size is unknown, as of a stream with `--steps`."""
    evaluate_every: float | None = None
    """Optimizer steps between evaluations without --eval-every; None for `schedule.steps_between_evaluations`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON facts like numbers of documents and tokens, for messages and to open the same data again."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """JSON that identifies the data files with which the run began (`Data.facts`)."""
    weights: Mapping[str, Any] = field(default_factory=dict)
    """JSON that identifies the weight files with which the run began (`Model.check`)."""
    changes: list[str] = field(default_factory=list)
    """A sentence about each change of the run since it began."""
    data_since: int = 0
    """Step at which the run switched to its present data, 0 if never. Earlier loader positions are of other data."""
    spec: Spec = NO_SPEC
    """Spec of the examples, set by the recipe: a trained model can be built from it without the data."""

    @classmethod
    def read(cls, folder: RunFolder) -> Prepared:
        """Returns the content of a run's data.json. Raises PlimsollError if it is not in the form of `to_json`."""
        with as_written(f"data.json of {folder.path}"):
            saved: dict[str, Any] = dict(folder.read("data.json"))
            spec = spec_of(saved.pop("spec"))
            return cls(**saved, spec=spec)

    def __post_init__(self) -> None:
        if self.steps > MOST_STEPS:
            raise RecipeError(
                f"so many --epochs are {self.steps:,} steps, and a run has at most {MOST_STEPS:,}: lower --epochs, or"
                " give --steps"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the content of data.json."""
        return asdict(self) | {"spec": self.spec.to_json()}


@dataclass(frozen=True)
class OwnRung:
    """Configuration in a recipe's own list for `plimsoll ladder` (`Model.ladder`)."""

    name: str
    words: str
    """Description for the table: the change from the configuration before."""
    levers: Mapping[str, Any]
    """Memory-saving options, by name, that are added to those of all earlier configurations in the list."""
    fields: Mapping[str, Any]
    """Options of the recipe, by name, that this configuration changes."""
    host: bool = False
    """True if it moves bytes to host memory: `plimsoll ladder` leaves it out on a CPU."""


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Host memory that reading the training data takes."""

    bytes: int
    """Bytes at the peak."""
    beside_accelerator: int = 0
    """Further bytes on a GPU or TPU, where free host cores may run more threads."""
    advice: str = ""
    """Way to reduce the bytes, like "a smaller --batch-size", for error messages. Empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Levers that the code of a recipe supports, and values that are worth trying for it."""

    levers: tuple[str, ...] = ()
    """Levers (memory-saving options) that the code supports. Those of the loss include `precision`, `remat`,
    `loss_chunk`, and `remat_offload` if it wraps its blocks by `levers.remat`; those of the optimizer are
    `optimizer_bits`, `weight_bits` and `offload`. `layerwise` needs support by both, and `remat`."""
    layerwise: int = 0
    """Backward passes of a layer-by-layer training step: 1 or 2; 0 if there is no such step. The second one is for the
    norm of the whole gradient, if gradients are clipped by it."""
    loss_chunks: tuple[int, ...] = ()
    """Chunk sizes of the chunked loss that the planner tries, in tokens whose logits are in memory at a time. On an
    NVIDIA GPU it tries its own sizes instead. Empty to try only all logits at once."""
    loss_whole: bool = True
    """True if the planner also tries the loss with all logits at once."""
    loss_rows: int | None = None
    """Rows of logits per example, which a chunked loss splits: tokens of a language model. None if unknown."""
    attention_chunks: tuple[int, ...] = ()
    """Block sizes that the planner tries for blockwise attention, in tokens, like (1024, 256). On a CPU or TPU it
    tries only the smallest. Empty to try only the fastest attention kernel."""
    mlp_chunks: tuple[int, ...] = ()
    """Chunk sizes that the planner tries for feed-forward (MLP) layers, in tokens of a sequence, like (2048, 512).
    Empty if it should only try the whole sequence at once."""
    head_width: int | None = None
    """Size of one attention head (`head_dim`), like 64; None if the model has no attention or it is unknown."""
    normalised_together: int = 1
    """Number of examples that share statistics, like those of batch norm: each device's micro-batch is a multiple of
    it. 1 if the loss is a sum over examples; the effective batch if this has to go through the model at once."""
    begins_with: str = ""
    """Options that name the weights that a run begins with, like "--pretrained"; empty if they are random."""
    frozen_given: bool = False
    """True if all frozen (not trained) weights come from files that the recipe names, like a pretrained model.
    Checkpoints then leave them out, and they are loaded from those files again."""


@dataclass(frozen=True, kw_only=True)
class Uses:
    """Uses of a trained model: commands, the best checkpoint, the report."""

    verbs: Mapping[str, Verb] = field(default_factory=dict)
    """Functions behind `plimsoll evaluate`, `sample`, `export`, `solve` and `rank`, by command. Without an entry,
    `evaluate` reports mean metrics of the validation set, and the other commands refuse the recipe's runs."""
    shown: tuple[Shown, ...] = ()
    """Parts of the HTML report that are made by the trained model, like sample texts."""
    best_by: str = "loss"
    """Validation metric that decides which checkpoint is the best: the lowest "loss", or the highest other metric."""
    tables: tuple[str, ...] = ()
    """Names of metrics, like `unexplained`, whose numbered values (`unexplained_12`) are logged as one dict."""
    reported: Callable[[Mapping[str, float], Spec], dict[str, Any]] = lambda metrics, spec: dict(metrics)
    """Function from the mean of each metric over the validation set to the output of `plimsoll evaluate`."""
    exhibits: Callable[[Mapping[str, Any], Spec], list[dict[str, Any]]] = lambda metrics, spec: []
    """Function from the metrics of the last evaluation to further tables and plots of the HTML report.

    Each is a dict, like {"kind": "table", "title": "...", "caption": "...", "header": ["system", "R^2"], "rows":
    [["pendulum", "0.98"]]}. All have a title and a caption. "curves" has `x_label`, `y_label`, `x` (list of numbers)
    and `y` (dict from names to lists of numbers). "texts" has `items` with `prompt` and `text`. "grids" has `items`
    with `name`, `before`, `after` and `said`, each of the last three a list of lines.
    """


@dataclass(frozen=True, kw_only=True)
class Model(Part):
    """The network and its loss. A subclass sets `reads`, and either sets `implementation` or overrides `task`."""

    group = "model"
    reads: ClassVar[type[Spec]] = Spec
    """Class of the specs that describe the examples for this model, like TokenSpec."""
    implementation: ClassVar[str] = ""
    """Class or function, as "module:name", that `task` calls with the model, the spec and `compute`. `task` imports it,
    with JAX."""
    uses: ClassVar[Uses] = Uses()
    """Uses of the trained model: commands, the best checkpoint, the report."""

    def task(self, spec: Any, compute: Compute) -> Task:
        """Returns the model and its loss as pure functions of parameters and a batch.

        Args:
            spec: Spec of the examples, of the class `reads`.
            compute: Settings of the plan that the model follows, like `compute.precision` and `compute.remat`.

        Raises:
            RecipeError: The model defines no task, or cannot read the examples.
        """
        if not self.implementation:
            raise RecipeError(
                f"the model {type(self).__name__} has no method `task`, which returns initial weights and the loss"
            )
        return resolved(self.implementation)(self, spec, compute)

    def row_rule(self, optimizer: Optimizer, steps: int) -> RowRule | None:
        """Returns the update rule for the rows of embedding tables that a step reads; None for a model without them.

        Args:
            optimizer: Optimizer of all other parameters.
            steps: Optimizer steps of the whole run.
        """
        return None

    def needs(self) -> Needs:
        """Returns the model's requirements on its data. There are none by default."""
        return Needs()

    def hints(self, spec: Any) -> Hints:
        """Returns the levers that the model's code supports, and values worth trying. There are none by default."""
        return Hints()

    def most(self, option: str) -> tuple[int, str] | None:
        """Returns the upper limit of an option's value, with an explanation; None, the default, if none is known.

        `plimsoll plan --largest OPTION` searches for the largest value that fits into memory, up to this limit.

        Args:
            option: Name of an option of any part, like "seq_len".

        Returns:
            The limit and a phrase, like (2048, "the tokens that the model was made to read at once").
        """
        return None

    def ladder(self, spec: Any, length: Length, optimizer: Optimizer) -> tuple[OwnRung, ...]:
        """Returns the configurations that `plimsoll ladder` compares, in order; empty for the default list.

        An entry adds memory-saving options (`levers`) to those of the entries before, and replaces options of the
        recipe, like OwnRung(name="remat", words="recompute blocks", levers={"remat": "block"}, fields={}).
        """
        return ()

    def load(self, params: Any, spec: Any, data: Any) -> Any:
        """Returns the initial parameters of a run, in the tree and shapes of `params`, whose arrays it may delete.

        It is called if `Hints.begins_with` is not empty.
        """
        return params

    def load_frozen(self, frozen: Any, spec: Any, data: Any) -> Any:
        """Returns the frozen weights in the tree, shapes and storage of `frozen`, whose arrays it may delete.

        It is called if `Hints.frozen_given`.
        """
        return frozen

    def check(self, spec: Any, say: Say) -> Mapping[str, Any]:
        """Checks once, before training, the files of weights that a run begins with.

        Returns:
            Facts that identify the files, as JSON. Empty by default.
        """
        return {}

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Raises DataError if the files of weights are not those that `check` saw when the run began."""


@dataclass(frozen=True, kw_only=True)
class Data(Part):
    """Source of the examples. A plan opens only the files that it needs."""

    group = "data"
    gives: ClassVar[type[Spec]] = Spec
    """Class of the specs that describe the examples, like TokenSpec."""
    spec_in_data: ClassVar[bool] = False
    """True if the spec does not follow from the options alone, so that planning needs the data."""
    named_by: ClassVar[str] = "data"
    """Name of the option that names the data."""
    missing: ClassVar[str] = ""
    """Clause for the error message if the user names no data: what data to name."""
    no_validation: ClassVar[str] = "its data set was too small for one. Train on some hundred documents or more"
    """Clause for error messages: why a run has no validation set, and what to do."""

    @property
    def title(self) -> str:
        """Name of the data for messages, as the user gave it."""
        return getattr(self, self.named_by, "the data")

    def refuse_missing(self) -> None:
        """Raises RecipeError if the user named no data."""
        if not self.title:
            raise RecipeError(f"{flag_of(self.named_by)} is missing: {self.missing}")

    @abstractmethod
    def spec(self, needs: Needs) -> Spec:
        """Returns the spec of the examples; from the options alone if no data is named."""

    @abstractmethod
    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        """Returns the host memory that reading takes; an estimate if nothing is prepared.

        Args:
            prepared: Result of `prepare`; None if nothing is prepared yet.
            reading: Settings of the run.
            prefetch: Number of batches that a background thread prepares in advance.
        """

    def in_flight(self, reading: Reading, prefetch: int) -> int:
        """Returns the bytes of batches in host memory: prefetched, in preparation, in use, and copied to devices."""
        return (prefetch + 3) * reading.batch_size * self.spec(reading.needs).example_bytes

    @abstractmethod
    def prepare(self, reading: Reading, say: Say) -> Prepared:
        """Does the one-time work before training, such as training a tokenizer and holding validation data out.

        Raises:
            DataError: The data cannot be read, or has too few examples.
        """

    @abstractmethod
    def source(self, reading: Reading, *, prefetch: int) -> Source:
        """Returns an endless iterator over training batches, starting with the first one.

        Args:
            reading: Settings of the run.
            prefetch: Number of batches that a background thread prepares in advance.

        Returns:
            The iterator. `state()` returns its position in the data as a JSON-serialisable dict, and `restore(state)`
            continues from there.
        """

    @abstractmethod
    def validation(self, reading: Reading, *, examples: int) -> Iterable[Batch]:
        """Returns the validation batches in order, of `examples` each; empty if there is no validation set."""

    def facts(self) -> Facts:
        """Returns facts that identify the files of this data; empty by default."""
        return Facts()

    def require_same(self, prepared: Prepared, reading: Reading, *, training: bool) -> None:
        """Raises DataError if the data has changed since `prepare`, as far as can be told without reading it all.

        Args:
            prepared: Result of `prepare` at the start of the run.
            reading: Settings of the run.
            training: True to check files that only training reads, too.
        """
        if prepared.files:
            require_same(self.title, prepared.files, self.facts())

    def with_vocabulary_of(self, run: Path, prepared: Prepared) -> Data:
        """Returns this data with the vocabulary of a run that has learned other data.

        Args:
            run: Folder of the run.
            prepared: Result of `prepare` for the data that the run began with.

        Raises:
            DataError: Numbers in this data have another meaning than in the other data, like ids of another tokenizer.
        """
        return self

    def imports(self) -> tuple[str, ...]:
        """Returns the Python modules that reading imports, like ("h5py",): the planner measures their memory."""
        return ()
