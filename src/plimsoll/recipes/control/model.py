"""Imitate the optimal controllers of thirty-five linear systems, from windows of states in an HDF5 file.

    plimsoll prepare control --samples 1M --out windows.h5
    plimsoll train   control --data windows.h5 --memory 512MiB

The network is not told which system it looks at: it has to recognise the system from the motion in the window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plimsoll.errors import RecipeError
from plimsoll.options import NonNegativeFloat, PositiveInt, Share
from plimsoll.recipes.parts import Hints, Model, Uses
from plimsoll.recipes.specs import Spec, WindowSpec
from plimsoll.recipes.verbs import Shown, Verb

PREFIX = "unexplained_"
"""Prefix of the name of a family's metric; the family's index follows."""


def r2_by_family(unexplained: Mapping[str, float | None], spec: Spec) -> dict[str, float]:
    """Returns R^2 about zero of each evaluated system. `unexplained` maps a system's index to 1 - R^2."""
    assert isinstance(spec, WindowSpec)
    shares = {name: unexplained.get(str(number)) for number, name in enumerate(spec.families)}
    return {name: 1 - share for name, share in shares.items() if share is not None}


def reported(metrics: Mapping[str, float], spec: Spec) -> dict[str, Any]:
    """Returns R^2 about zero of each family, the mean of these, and all other metrics."""
    unexplained = {name.removeprefix(PREFIX): value for name, value in metrics.items() if name.startswith(PREFIX)}
    rest = {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}
    r2 = r2_by_family(unexplained, spec)
    return rest | {"macro_r2": sum(r2.values()) / len(r2), "r2": r2}


def exhibits(metrics: Mapping[str, Any], spec: Spec) -> list[dict[str, Any]]:
    """Returns a table of R^2 by system."""
    rows = r2_by_family(metrics.get("unexplained", {}), spec)
    if not rows:
        return []
    table = {
        "kind": "table",
        "title": "How much of each system's control it explains",
        "caption": "R^2 about zero, of held-out windows at the last evaluation: 1 is the optimal controller itself, 0"
        " is no better than doing nothing. The best first.",
        "header": ["system", "R^2"],
        "rows": [[name, f"{r2:.3f}"] for name, r2 in sorted(rows.items(), key=lambda row: -row[1])],
    }
    return [table]


@dataclass(frozen=True, kw_only=True)
class Imitator(Model):
    """A small causal transformer over windows of states."""

    name = "imitator"
    reads = WindowSpec
    implementation = "plimsoll.recipes.control.imitator:Imitating"
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
    """Width of the feed-forward layers. By default 4 x --width."""
    dropout: Share = 0.0
    """Share of activations that is dropped in training. The published recipe has 0.1."""
    network: Literal["gain", "published"] = "gain"
    """Input and output of the network. gain: motion at every scale, and a gain matrix, whose product with the last
    state is the control; published: the states, and the control itself."""
    patch: PositiveInt = 4
    """Time steps of a token of --network gain, a divisor of the window. The published value is 1."""
    error_floor: NonNegativeFloat = 0.1
    """Size of controls, in units of their family's root mean square, above which their errors count less in training.
    0 gives the published squared error."""

    def check_options(self) -> None:
        if self.width % self.heads:
            raise RecipeError(f"--width {self.width} cannot be divided among --heads {self.heads}")

    def hints(self, spec: WindowSpec) -> Hints:
        return Hints(levers=("precision", "unroll", "remat", "remat_offload"))
