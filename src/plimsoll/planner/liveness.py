"""Estimate of a traced function's temporaries without a compiler: the values alive at each of its operations.

It serves for chips whose compiler is not installed. The result of an operation is allocated at the operation, and freed
after its last use. A compiler fuses elementwise operations, broadcasts and conversions into their consumers: their
results are never allocated, but keep their operands alive. A loop holds one round of its body, and stacks the values
that it stores for the backward pass. Values in the host's memory do not count. docs/chips.md compares the estimates
with compilers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import jax
from jax.extend import core as jex

from plimsoll.planner.flops import inner_jaxprs, live

_SAME_BYTES = """
    reshape squeeze expand_dims broadcast_in_dim bitcast_convert_type iota copy stop_gradient optimization_barrier name
    sharding_constraint
"""
FREE = frozenset(_SAME_BYTES.split())
"""Operations that return the same bytes with another shape or name, or that are computed where their result is used."""
_ELEMENTWISE = """
    abs add add_any and cbrt ceil clamp convert_element_type cos div eq erf erf_inv exp exp2 expm1 floor ge gt
    integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow real round
    rsqrt select_n shift_left shift_right_logical sign sin sqrt square sub tan tanh xor reduce_precision
    transpose slice pad rev
"""
FUSED = frozenset(_ELEMENTWISE.split())
"""Elementwise operations, which a compiler fuses into the operations that read their results."""
CALLS = ("jit", "custom_jvp_call")
"""Calls of functions that the compiler of an accelerator inlines."""
UPDATES = ("dynamic_update_slice", "scatter", "scatter-add")
"""Operations that write into their first operand, unless a later operation reads it."""
READS_FUSED = FUSED | FREE | {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin"}
"""Operations into which a compiler fuses the computation of their operands."""


def temporary_bytes(closed: Any, *, workspace: int = 0, inlined: Collection[str] = ()) -> int:
    """Returns the largest sum of bytes of intermediate values alive at once, without arguments and results.

    Args:
        closed: The traced function.
        workspace: Bytes that a library takes while it computes a matmul.
        inlined: Names of calls that are inlined, so that their elementwise operations are fused: `CALLS` on an
            accelerator, none on a CPU.
    """
    return _peak(live(closed), workspace, inlined)


def kept_on_host_bytes(closed: Any) -> int:
    """Returns the bytes that loops stack in the host's memory for the backward pass."""
    return _stacked_on_host(live(closed))


def _stacked_on_host(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            (body,) = inner_jaxprs(equation)
            made = zip(equation.outvars, body.outvars, strict=True)
            stacked = (whole for whole, of_a_round in made if whole.aval.ndim > of_a_round.aval.ndim)
            total += sum(_bytes(variable, on_host=True) for variable in stacked)
        total += sum(map(_stacked_on_host, inner_jaxprs(equation)))
    return total


def _peak(jaxpr: Any, workspace: int, inlined: Collection[str]) -> int:
    """Returns the largest sum of bytes alive at once in a jaxpr. The caller adds arguments and results."""
    results = _in_bytes_of_results(jaxpr)
    made_from, last_use = _followed(jaxpr, results, inlined)
    alive: dict[Any, int] = {}
    highest = 0
    for at, equation in enumerate(jaxpr.eqns):
        written = [variable for variable in equation.outvars if variable not in made_from and variable not in results]
        allocated = {variable: _bytes(variable) for variable in written}

        # A loop's results reuse the bytes of values whose last use is the loop. An update reuses those of its operand.
        dying = [value for value in alive if last_use.get(value, -1) <= at]
        reused = sum(alive[value] for value in dying if _takes_bytes_of(value, equation))

        beside = max(0, sum(allocated.values()) - reused) + _inside(equation, workspace, inlined)
        highest = max(highest, sum(alive.values()) + beside)
        for value in dying:
            del alive[value]
        alive |= {variable: size for variable, size in allocated.items() if last_use.get(variable, -1) > at}
    return highest


def _takes_bytes_of(value: Any, equation: Any) -> bool:
    """Returns True if an operation's result may reuse the bytes of a value whose last use is the operation."""
    name = equation.primitive.name
    return name in ("scan", "while") or (name in UPDATES and value is equation.invars[0])


def _inside(equation: Any, workspace: int, inlined: Collection[str]) -> int:
    """Returns the bytes that an operation needs besides its operands and results."""
    inside = max((_peak(inner, workspace, inlined) for inner in inner_jaxprs(equation)), default=0)
    if equation.primitive.name == "dot_general":
        return inside + workspace
    return inside + _rounded_before(equation) if equation.primitive.name == "scan" else inside


def _in_bytes_of_results(jaxpr: Any) -> set[Any]:
    """Returns the results of a jaxpr, and the values whose bytes a result reuses."""
    results = set(_variables(jaxpr.outvars))
    last_reader = {variable: equation for equation in jaxpr.eqns for variable in _variables(equation.invars)}
    for equation in reversed(jaxpr.eqns):
        # Add the operand of an operation that only changes shape or name.
        if equation.primitive.name in FREE and results.intersection(equation.outvars):
            results.update(_variables(equation.invars))

        # Add an operand that the result overwrites, if no later operation reads it.
        for before, after in _written_over(equation):
            if after in results and last_reader.get(before) is equation:
                results.add(before)
    return results


def _rounded_before(loop: Any) -> int:
    """Returns the bytes of a loop's constants after conversion to a narrower type.

    The loop's body converts them in every round. A compiler converts them once, before the loop.
    """
    (body,) = inner_jaxprs(loop)
    constants = {variable: variable for variable in body.invars[: loop.params["num_consts"]]}
    return sum(_rounded(body, constants).values())


def _rounded(jaxpr: Any, constants: dict[Any, Any]) -> dict[Any, int]:
    """Returns the bytes of `constants` after conversion to narrower types, by constant and type.

    `constants` maps each variable that holds a constant to that constant.
    """
    rounded: dict[Any, int] = {}
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        sources = [None if isinstance(atom, jex.Literal) else constants.get(atom) for atom in equation.invars]
        source = next(iter(sources), None)

        # Follow a constant through changes of shape, and count its conversions to a narrower type.
        if source is not None and name in FREE:
            constants[equation.outvars[0]] = source
        elif source is not None and _rounds(equation):
            result = equation.outvars[0]
            rounded[source, result.aval.dtype] = _bytes(result)

        # Follow constants into called functions and inner scans.
        count = equation.params["num_consts"] if name == "scan" else len(sources)
        for inner in [] if name in ("cond", "while") else inner_jaxprs(equation):
            passed = dict(zip(inner.invars, sources[:count], strict=False))
            rounded |= _rounded(inner, passed)
    return rounded


def _rounds(equation: Any) -> bool:
    """Returns True if an operation converts a value to a narrower type."""
    if equation.primitive.name != "convert_element_type":
        return False
    return equation.outvars[0].aval.dtype.itemsize < equation.invars[0].aval.dtype.itemsize


def _written_over(equation: Any) -> Iterable[tuple[Any, Any]]:
    """Returns pairs of an operand and the result that overwrites it: the carry of a loop, the target of an update."""
    name, parameters = equation.primitive.name, equation.params
    operands = equation.invars
    if name in UPDATES:
        operands = operands[:1]
    elif name == "scan":
        first = parameters["num_consts"]
        operands = operands[first : first + parameters["num_carry"]]
    elif name == "while":
        operands = operands[parameters["cond_nconsts"] + parameters["body_nconsts"] :]
    else:
        operands = []
    pairs = zip(operands, equation.outvars, strict=False)
    return [(before, after) for before, after in pairs if not isinstance(before, jex.Literal)]


def _followed(
    jaxpr: Any, results: set[Any], inlined: Collection[str]
) -> tuple[dict[Any, frozenset[Any]], dict[Any, int]]:
    """Returns two dicts by variable: the allocated values that a fused variable is computed from, and the last use.

    The last use of a variable is the index of an equation.
    """
    read_unfused = {
        variable
        for equation in jaxpr.eqns
        for variable in _variables(equation.invars)
        if not _consists_of(equation, READS_FUSED, inlined)
    }
    made_from: dict[Any, frozenset[Any]] = {}
    last_use: dict[Any, int] = {}
    for at, equation in enumerate(jaxpr.eqns):
        is_free = equation.primitive.name in FREE
        is_fused = _consists_of(equation, FUSED | FREE, inlined)
        operands = (made_from.get(variable, {variable}) for variable in _variables(equation.invars))
        sources = frozenset[Any]().union(*operands)
        last_use |= dict.fromkeys(sources, at)
        for variable in equation.outvars:
            never_written = is_fused and variable not in results and variable not in read_unfused
            if is_free or never_written:
                made_from[variable] = sources
    return made_from, last_use


def _consists_of(equation: Any, names: Collection[str], inlined: Collection[str]) -> bool:
    """Returns True if an operation is one of `names`, or an inlined call of a function with no other operations."""
    name = equation.primitive.name
    if name in inlined:
        return all(_consists_of(inner, names, inlined) for jaxpr in inner_jaxprs(equation) for inner in jaxpr.eqns)
    return name in names


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _bytes(variable: Any, *, on_host: bool = False) -> int:
    """Returns the bytes of a value in the device's memory (`on_host`: the host's); 0 if it lies in the other memory."""
    aval = variable.aval
    size = getattr(aval, "size", 0)
    if not size or on_host != (getattr(aval, "memory_space", None) == jax.memory.Space.Host):
        return 0
    return int(size) * getattr(aval.dtype, "itemsize", 8)
