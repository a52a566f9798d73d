"""Imitate the optimal controllers of thirty-five linear systems, from windows of states in an HDF5 file.

    plimsoll prepare control --samples 1M --out windows.h5
    plimsoll train   control --data windows.h5 --memory 512MiB

The network is not told which system it looks at: it has to recognise it from the motion in the window. Validation is by
held-out variants of the systems, or by trajectory; the two never share a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plimsoll.data import require_sizes
from plimsoll.errors import RecipeError
from plimsoll.files.facts import facts_of, require_same
from plimsoll.recipes.base import AdamWRecipe, Count, Prepared, Say
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import Compute, Source, Task
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.control.rows import ControlRows

READER_BYTES = 12 * MIB
"""The library, its cache, and what chunks and small arrays leave in the heap (notes, "The reader's share")."""
BATCHES = 3
"""Besides those made ahead: one in the making, one taken, and the step's own copy of it."""
DEFAULT_EPOCHS = 3.0


@dataclass(frozen=True, kw_only=True)
class Control(AdamWRecipe):
    """A small causal transformer over windows of states."""

    kind: ClassVar[str] = "control"
    tables: ClassVar[tuple[str, ...]] = ("unexplained",)
    without_validation: ClassVar[str] = "it was trained with --split none. Train with --split variant, or trajectory"
    verbs: ClassVar[Mapping[str, Verb]] = {
        "evaluate": Verb(
            answer="plimsoll.recipes.control.closed_loop:evaluate",
            text="plimsoll.recipes.control.tables:evaluation",
        ),
    }
    shown: ClassVar[tuple[Shown, ...]] = (
        Shown(
            words="how it drives",
            make="plimsoll.recipes.control.closed_loop:shown",
            command="plimsoll evaluate {run} --closed-loop",
            takes_minutes=True,
        ),
    )
    supported: ClassVar[tuple[str, ...]] = (
        "precision",
        "unroll",
        "remat",
        "remat_offload",
    )

    data: str = ""
    """HDF5 file with control windows: what `plimsoll prepare control` writes, or another file with the same datasets.
    Planning needs none."""
    split: Literal["variant", "trajectory", "none"] = "variant"
    """Part that is held out for validation: variants of the systems, trajectories, or nothing."""
    validation_rows: Count = 20_000
    """Most held-out windows to evaluate on, taken evenly from the held-out part."""
    mix_chunks: int = 16
    """Chunks of the file whose rows are shuffled together. The order of the chunks is always shuffled."""
    skip_bad: bool = False
    """Skip rows that are not finite, and count them. By default such a row ends the run."""

    width: int = 64
    """Width of the hidden states, a multiple of --heads."""
    heads: int = 4
    """Number of attention heads."""
    layers: int = 4
    """Number of transformer blocks."""
    inner: int | None = None
    """Width of the feed-forward part. By default 4 x --width."""
    dropout: float = 0.0
    """Share of activations that is dropped in training. The published recipe has 0.1."""
    network: Literal["gain", "published"] = "gain"
    """What the network reads and says: the motion at every size and a gain, whose product with the last state is the
    control; or, as published, the states alone and the control itself."""
    patch: int = 4
    """Time steps of a token of --network gain, a divisor of the window. As published it is 1."""
    error_floor: float = 0.1
    """Size of controls, in units of their family's root mean square, above which their errors count less in training.
    0 is the squared error as published."""

    batch_size: int = 256
    learning_rate: float = 2e-3
    default_warmup_steps: int | None = 500
    weight_decay: float = 1e-4
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data:  # a run is continued and evaluated from other folders, too
            object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))
        require_sizes(width=self.width, heads=self.heads, layers=self.layers, inner=self.inner)
        require_sizes(mix_chunks=self.mix_chunks, patch=self.patch)
        require_sizes(least=0, validation_rows=self.validation_rows)
        if self.width % self.heads:
            raise RecipeError(f"--width {self.width} cannot be divided among --heads {self.heads}")
        if not 0 <= self.dropout < 1:
            raise RecipeError(f"--dropout must be from 0 to below 1, got {self.dropout:g}")
        if not 0 <= self.error_floor < math.inf:
            raise RecipeError(f"--error-floor must be 0 or more and finite, got {self.error_floor:g}")

    @cached_property
    def rows(self) -> ControlRows:
        """The opened HDF5 file."""
        if not self.data:
            raise RecipeError(
                "--data is missing: name the HDF5 file of windows. `plimsoll prepare control --samples 1M --out"
                " windows.h5` makes one"
            )
        from plimsoll.recipes.control.rows import ControlRows

        return ControlRows(self.data, split=self.split)

    def batch_spec(self, examples: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: ((examples, *shape), dtype) for name, (shape, dtype) in self.rows.spec.items()}

    @property
    def evaluation_options(self) -> tuple[str, ...]:
        return (*super().evaluation_options, "closed_loop")

    def task(self, compute: Compute) -> Task:
        from plimsoll.recipes.control.model import Imitator, ImitatorShape

        spec = self.rows.spec
        (length, features), (outputs,) = spec["inputs"][0], spec["controls"][0]
        says_gain = self.network == "gain"
        if says_gain and length % self.patch:
            divisors = ", ".join(str(size) for size in range(1, length + 1) if length % size == 0)
            raise RecipeError(
                f"a window of {length} states cannot be divided into tokens of --patch {self.patch}: it can into those"
                f" of {divisors}"
            )
        shape = ImitatorShape(
            features=features,
            outputs=outputs,
            families=len(self.rows.families),
            width=self.width,
            heads=self.heads,
            layers=self.layers,
            inner=self.inner or 4 * self.width,
            positions=max(128, length),
            dropout=self.dropout,
            gain_states=self.rows.states if says_gain else 0,
            patch=self.patch,
            error_floor=self.error_floor,
        )
        return Imitator(shape, compute)

    def prepare(self, folder: Path, say: Say) -> Prepared:
        rows = self.rows
        count = rows.training_rows
        steps, per_epoch = self.steps_over(count, called=self.data, default_epochs=DEFAULT_EPOCHS)
        description = f"{len(rows):,} windows of {len(rows.families)} systems in {self.data}, split by {self.split}"
        say(f"data: {description}; {steps:,} steps are {steps / per_epoch:.3g} epochs")
        if warning := rows.warning(mix=self.mix_chunks):
            say(warning)
        facts = {"description": description, "rows": len(rows), "training_rows": count, "families": rows.families}
        facts |= {"file": facts_of([rows.path]).to_json()}
        return Prepared(steps=steps, steps_per_epoch=per_epoch, facts=facts)

    def data_changed(self, prepared: Prepared) -> None:
        require_same(self.data, prepared.facts["file"], facts_of([self.rows.path]))

    def data_advice(self) -> str:
        if self.rows.has_huge_chunks:
            return 'a smaller --mix-chunks, or smaller chunks (docs/control.md, "Huge chunks")'
        return "a smaller --mix-chunks"

    def source(self, folder: Path, *, prefetch: int) -> Source:
        return self.rows.loader(
            batch_size=self.effective_batch,
            seed=self.seed,
            mix=self.mix_chunks,
            skip_bad=self.skip_bad,
            prefetch=prefetch,
        )

    def validation(self, folder: Path, *, examples: int) -> Iterable[dict[str, Any]]:
        return self.rows.validation(most=self.validation_rows, batch_size=examples, skip_bad=self.skip_bad)

    def reported(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns R^2 of each family, about zero, and their mean."""
        families = self.rows.families
        r2 = {
            family: 1 - metrics[f"unexplained_{i}"]
            for i, family in enumerate(families)
            if metrics.get(f"unexplained_{i}") is not None
        }
        rest = {name: value for name, value in metrics.items() if not name.startswith("unexplained_")}
        return rest | {"macro_r2": sum(r2.values()) / len(r2), "r2": r2}

    def exhibits(self, metrics: Mapping[str, Any], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        names = facts.get("families", ())
        table = metrics.get("unexplained", {})
        rows = [(name, 1 - share) for i, name in enumerate(names) if (share := table.get(str(i))) is not None]
        if not rows:
            return []
        return [
            {
                "kind": "table",
                "title": "How much of each system's control it explains",
                "caption": "R^2 about zero, of held-out windows at the last evaluation: 1 is the optimal controller"
                " itself, 0 is no better than doing nothing. The best first.",
                "header": ["system", "R^2"],
                "rows": [[name, f"{r2:.3f}"] for name, r2 in sorted(rows, key=lambda row: -row[1])],
            }
        ]

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        rows = self.rows
        batches = (prefetch + BATCHES) * self.effective_batch * rows.example_bytes
        # chunks in memory at most: those that are mixed, and one as it is read
        chunks = rows.chunk_rows * ((self.mix_chunks + 1) * rows.example_bytes + rows.row_bytes)
        return {"data": READER_BYTES + chunks + batches}

    def imports(self) -> tuple[str, ...]:
        return ("h5py",)
