"""Imitate the optimal controllers of thirty-five linear systems, from windows of states in an HDF5 file.

    plimsoll prepare control --samples 1M --out windows.h5
    plimsoll train   control --data windows.h5 --memory 512MiB

The network is not told which system it looks at: it has to recognise it from the motion in the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.errors import RecipeError
from plimsoll.options import NonNegativeFloat, PositiveInt, Share
from plimsoll.recipes.parts import Hints, Model, Uses
from plimsoll.recipes.specs import Spec, WindowSpec
from plimsoll.recipes.verbs import Shown, Verb
from plimsoll.types import Compute

if TYPE_CHECKING:
    from plimsoll.recipes.control.imitator import Imitating

LONGEST = 128
"""States of a window for which the network has positions at least."""


def reported(metrics: Mapping[str, float], spec: Spec) -> dict[str, Any]:
    """Returns R^2 of each family, about zero, and their mean."""
    assert isinstance(spec, WindowSpec)
    r2 = {
        family: 1 - metrics[f"unexplained_{number}"]
        for number, family in enumerate(spec.families)
        if metrics.get(f"unexplained_{number}") is not None
    }
    rest = {name: value for name, value in metrics.items() if not name.startswith("unexplained_")}
    return rest | {"macro_r2": sum(r2.values()) / len(r2), "r2": r2}


def exhibits(metrics: Mapping[str, Any], spec: Spec) -> list[dict[str, Any]]:
    """Returns a table of R^2 by system."""
    assert isinstance(spec, WindowSpec)
    unexplained = metrics.get("unexplained", {})
    rows = []
    for number, name in enumerate(spec.families):
        share = unexplained.get(str(number))
        if share is not None:
            rows.append((name, 1 - share))
    if not rows:
        return []
    table = {
        "kind": "table",
        "title": "How much of each system's control it explains",
        "caption": "R^2 about zero, of held-out windows at the last evaluation: 1 is the optimal controller itself, 0"
        " is no better than doing nothing. The best first.",
        "header": ["system", "R^2"],
        "rows": [[name, f"{r2:.3f}"] for name, r2 in sorted(rows, key=lambda row: -row[1])],
    }
    return [table]


@dataclass(frozen=True, kw_only=True)
class Imitator(Model):
    """A small causal transformer over windows of states."""

    name = "imitator"
    reads = WindowSpec
    uses = Uses(
        verbs={
            "evaluate": Verb(
                answer="plimsoll.recipes.control.closed_loop:evaluate",
                text="plimsoll.recipes.control.tables:evaluation",
                options=("closed_loop",),
            ),
        },
        shown=(
            Shown(
                words="how it drives",
                make="plimsoll.recipes.control.closed_loop:shown",
                command="plimsoll evaluate {run} --closed-loop",
                takes_minutes=True,
            ),
        ),
        tables=("unexplained",),
        reported=reported,
        exhibits=exhibits,
    )

    width: PositiveInt = 64
    """Width of the hidden states, a multiple of --heads."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    layers: PositiveInt = 4
    """Number of transformer blocks."""
    inner: PositiveInt | None = None
    """Width of the feed-forward part. By default 4 x --width."""
    dropout: Share = 0.0
    """Share of activations that is dropped in training. The published recipe has 0.1."""
    network: Literal["gain", "published"] = "gain"
    """What the network reads and says: the motion at every size and a gain, whose product with the last state is the
    control; or, as published, the states alone and the control itself."""
    patch: PositiveInt = 4
    """Time steps of a token of --network gain, a divisor of the window. As published it is 1."""
    error_floor: NonNegativeFloat = 0.1
    """Size of controls, in units of their family's root mean square, above which their errors count less in training.
    0 is the squared error as published."""

    def check_options(self) -> None:
        if self.width % self.heads:
            raise RecipeError(f"--width {self.width} cannot be divided among --heads {self.heads}")

    def hints(self, spec: WindowSpec) -> Hints:
        return Hints(levers=("precision", "unroll", "remat", "remat_offload"))

    def task(self, spec: WindowSpec, compute: Compute) -> Imitating:
        from plimsoll.recipes.control.imitator import Imitating, ImitatorShape

        (length, features), (outputs,) = spec.arrays["inputs"][0], spec.arrays["controls"][0]
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
            families=len(spec.families),
            width=self.width,
            heads=self.heads,
            layers=self.layers,
            inner=self.inner or 4 * self.width,
            positions=max(LONGEST, length),
            dropout=self.dropout,
            gain_states=spec.states if says_gain else 0,
            patch=self.patch,
            error_floor=self.error_floor,
        )
        return Imitating(shape, compute)
