"""Specs: the shapes of examples, all that a model and the planner know about data. A run saves its spec in data.json.

If the user names no data, the spec follows from options alone, so that a plan needs no data. A model names the class of
specs that it reads, and can be trained on all data with such specs.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from plimsoll.types import COUNTED

Arrays = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each array by its name, like {"x": ((2,), "float32")}."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Shapes of examples."""

    kind: ClassVar[str] = "arrays"
    """Name of this class of specs in data.json and in messages."""

    arrays: Arrays
    """Arrays of one example."""
    further: Arrays = field(default_factory=dict)
    """Arrays that only examples of the validation set have."""
    tokens: int | None = None
    """Tokens of an example; None if throughput is reported in examples."""
    filled: bool = False
    """True if the last validation batch is filled up to full size. Validation batches then have an array "counted",
    which is False for the filling examples."""

    @property
    def rate_unit(self) -> str:
        """Unit of the reported throughput, per second."""
        return "examples" if self.tokens is None else "tokens"

    @property
    def rate_per_example(self) -> int:
        """Units of throughput (tokens or examples) per example."""
        return 1 if self.tokens is None else self.tokens

    @property
    def example_bytes(self) -> int:
        """Bytes of one example's arrays."""
        import numpy as np

        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.arrays.values())

    def batch(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each array in a training batch of the given number of examples."""
        return {name: ((examples, *shape), dtype) for name, (shape, dtype) in self.arrays.items()}

    def validation_batch(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each array in a validation batch of the given number of examples."""
        batch = self.batch(examples)
        if self.filled:
            batch[COUNTED] = (examples,), "bool"
        for name, (shape, dtype) in self.further.items():
            batch[name] = (examples, *shape), dtype
        return batch

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as data.json holds it."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class ArraySpec(Spec):
    """Data made of named arrays of any shapes."""


@dataclass(frozen=True, kw_only=True)
class TokenSpec(Spec):
    """Windows of tokens."""

    kind = "tokens"

    vocab: int
    """Number of different tokens that a model has to know."""
    length: int
    """Tokens that a model reads at once."""


@dataclass(frozen=True, kw_only=True)
class DocumentSpec(Spec):
    """Rows of several documents each; no document attends to another."""

    kind = "documents"

    vocab: int
    length: int
    """Number of tokens in a row."""


@dataclass(frozen=True, kw_only=True)
class PuzzleSpec(Spec):
    """Puzzles with their solutions."""

    kind = "puzzles"

    vocab: int
    length: int
    """Tokens of a puzzle."""
    identifiers: int
    """Number of rows in the table of puzzle embeddings."""


@dataclass(frozen=True, kw_only=True)
class ItemSpec(Spec):
    """Histories of users: the items that each took, in order."""

    kind = "items"

    items: int
    """Number of different items."""
    length: int
    """Items that a model reads at once."""
    embedding_size: int | None
    """Width of the item embeddings in the data; None if it has none."""
    clusters: int
    largest_cluster: int
    """Number of items in the largest cluster."""


@dataclass(frozen=True, kw_only=True)
class WindowSpec(Spec):
    """Windows of successive states of controlled systems, like a pendulum."""

    kind = "windows"

    families: tuple[str, ...]
    """Names of the systems. The array `family` of an example is an index of this tuple."""
    states: int
    """Number of state variables: the first features of a time step. Further features encode the system's sizes."""


KINDS: dict[str, type[Spec]] = {
    spec.kind: spec for spec in (ArraySpec, TokenSpec, DocumentSpec, PuzzleSpec, ItemSpec, WindowSpec)
}


def spec_of(saved: Mapping[str, Any]) -> Spec:
    """Returns the spec that `Spec.to_json` wrote."""
    fields = dict(saved)
    cls = KINDS[fields.pop("kind")]
    for arrays in ("arrays", "further"):
        fields[arrays] = {name: (tuple(shape), dtype) for name, (shape, dtype) in fields[arrays].items()}
    if "families" in fields:
        fields["families"] = tuple(fields["families"])
    return cls(**fields)
