"""Temporaries of a traced function without a compiler: what is alive at the same time, operation by operation.

For chips whose compiler is not installed. An operation's result is allocated when it is made and given back after its
last use; what a compiler fuses into its consumers (elementwise work, broadcasts, conversions) is never allocated, but
keeps alive what it is made from. Loops hold one round of their body, and stack what they keep for the backward pass.
What lies in the host's memory is not counted: it takes none of the device's.
docs/chips.md says how far this is from what the compilers say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend import core as jex
from jax.interpreters import partial_eval

FREE = frozenset(
    {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "iota", "copy", "stop_gradient", "optimization_barrier"}
)
"""The same bytes under another shape, or made where they are used."""
_ELEMENTWISE = """
    abs add add_any and cbrt ceil clamp convert_element_type cos div eq erf erf_inv exp exp2 expm1 floor ge gt
    integer_pow is_finite le log log1p logistic lt max min mul name ne neg not or pow real round
    rsqrt select_n shift_left shift_right_logical sign sin sqrt square sub tan tanh xor reduce_precision
    sharding_constraint transpose slice pad rev
"""
FUSED = frozenset(_ELEMENTWISE.split())
"""Done inside whoever reads the result."""
READS_FUSED = FUSED | FREE | {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin"}
"""Those that can do it."""

Values = frozenset[Any]


def temporary_bytes(closed: Any) -> int:
    """Returns the largest sum of intermediate values alive at once; arguments and results are not counted."""
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _Scope(live).peak()


def kept_on_host_bytes(closed: Any) -> int:
    """Returns the bytes that loops stack in the host's memory for the backward pass."""
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _stacked_on_host(live)


def _stacked_on_host(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            total += sum(map(_host_bytes, equation.outvars[equation.params["num_carry"] :]))
        total += sum(map(_stacked_on_host, _bodies(equation)))
    return total


class _Scope:
    """One jaxpr: its own arguments and results belong to whoever calls it."""

    def __init__(self, jaxpr: Any) -> None:
        self.equations = jaxpr.eqns
        self.results = set(_variables(jaxpr.outvars))
        for equation in reversed(self.equations):  # what only has another shape there is that result
            if equation.primitive.name in FREE and self.results.intersection(equation.outvars):
                self.results.update(_variables(equation.invars))
        self.made_from: dict[Any, Values] = {}
        self.last_use: dict[Any, int] = {}
        self._follow()

    def _follow(self) -> None:
        readers: dict[Any, list[str]] = {}
        for equation in self.equations:
            for variable in _variables(equation.invars):
                readers.setdefault(variable, []).append(equation.primitive.name)
        for at, equation in enumerate(self.equations):
            sources = frozenset().union(*(self._sources(variable) for variable in _variables(equation.invars)))
            for source in sources:
                self.last_use[source] = at
            for variable in equation.outvars:
                if _virtual(equation, readers.get(variable, []), variable in self.results):
                    self.made_from[variable] = sources

    def _sources(self, variable: Any) -> Values:
        """Returns the allocated values that a variable is made from."""
        return self.made_from.get(variable, frozenset({variable}))

    def peak(self) -> int:
        alive: dict[Any, int] = {}
        highest = 0
        for at, equation in enumerate(self.equations):
            inside = max((_Scope(inner).peak() for inner in _bodies(equation)), default=0)
            made = {
                variable: _bytes(variable)
                for variable in equation.outvars
                if variable not in self.made_from and variable not in self.results
            }
            dying = [value for value in alive if self.last_use.get(value, -1) <= at]
            reused = sum(alive[value] for value in dying) if equation.primitive.name in ("scan", "while") else 0
            highest = max(highest, sum(alive.values()) + max(0, sum(made.values()) - reused) + inside)
            for value in dying:
                del alive[value]
            alive |= {variable: size for variable, size in made.items() if self.last_use.get(variable, -1) > at}
        return highest


def _virtual(equation: Any, readers: Sequence[str], is_result: bool) -> bool:
    name = equation.primitive.name
    if name in FREE:
        return True
    return name in FUSED and not is_result and all(reader in READS_FUSED for reader in readers)


def _bodies(equation: Any) -> list[Any]:
    found = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                found.append(item)
    return found


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _bytes(variable: Any) -> int:
    return 0 if _on_host(variable) else _size(variable)


def _host_bytes(variable: Any) -> int:
    return _size(variable) if _on_host(variable) else 0


def _on_host(variable: Any) -> bool:
    return getattr(variable.aval, "memory_space", None) == jax.memory.Space.Host


def _size(variable: Any) -> int:
    aval = variable.aval
    size = getattr(aval, "size", 0)
    return int(size) * getattr(aval.dtype, "itemsize", 8) if size else 0
