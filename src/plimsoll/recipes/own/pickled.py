"""Code of recipes that are in no file: functions of a notebook, a prompt or a script, handed over as a pickle.

cloudpickle writes functions by value, and importable modules by name. The pickle lies in a private temporary folder of
this process, which child processes find by an environment variable. The folder is removed when the process ends. No run
holds a pickle, so nothing that came with data or with a run is ever unpickled. A run holds the SHA-256 of the JAX
traces of init, loss and optimizer: another notebook with the same functions can continue it.
"""

import atexit
import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.planned import plain_compute
from plimsoll.recipes.own.recipe import OwnRecipe
from plimsoll.recipes.recipe import Recipe
from plimsoll.units import MIB, format_bytes

VARIABLE = "PLIMSOLL_CODE"
"""Environment variable with the folder of pickles, for child processes of the process that made the folder."""
MOST_BYTES = 256 * MIB
"""Limit on the bytes of a pickle: the values in it are copied to every process, and into each compiled step."""
STEPS = 1_000
"""Number of steps given to an optimizer before it is hashed: fixed, because a run may be continued for longer."""
OPAQUE = "pickle "
"""Prefix of a hash that is not of data but of its pickle. Two programs may pickle the same data differently."""

_made: dict[str, type[OwnRecipe]] = {}
"""Recipe class in each pickle, by the pickle's key."""
_described: dict[tuple[type[OwnRecipe], str], dict[str, Any]] = {}
"""Name and hashes of code and data of each recipe, by its class and its own fields (`_own`)."""


def describe(recipe: Recipe) -> dict[str, Any]:
    """Returns name and hashes of a recipe that is in no file, and writes its pickle for the processes that need it.

    Raises:
        RecipeError: The functions hold too many bytes, cannot be pickled, or fail when they are traced.
    """
    cls = type(recipe.origin)
    known = cls, _own(recipe.options)
    if known not in _described:
        pickle = _pickled(cls)
        data = cls.of_data or OPAQUE + hashlib.sha256(pickle).hexdigest()
        described = {"name": recipe.origin.short_name, "code": _computed(recipe), "data": data}
        beginning = json.dumps([path for path in sys.path if path] + [os.getcwd()]).encode() + b"\n"
        for key in _keys(described):
            _made[key] = cls
            (folder() / f"{key}.pickle").write_bytes(beginning + pickle)
        _described[known] = described
    return _described[known]


def is_pickled(saved: Mapping[str, Any]) -> bool:
    """Returns True if a saved recipe is of code that is in no file."""
    return "data" in saved


def is_here(saved: Mapping[str, Any]) -> bool:
    """Returns True if this process, or the one that started it, was given the functions of a saved recipe."""
    try:
        from_saved(saved)
    except RecipeError:
        return False
    return True


def from_saved(saved: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that `saved.to_dict` wrote.

    Raises:
        RecipeError: Neither this process nor the one that started it was given the functions.
    """
    keys = _keys(saved)
    for key in keys if saved["data"].startswith(OPAQUE) else keys[:1]:
        cls = _made.get(key) or _read(key)
        if cls is not None:
            _made[key] = cls
            _described[cls, _own(saved["fields"])] = {name: saved[name] for name in ("name", "code", "data")}
            return cls(**saved["fields"]).composed()
    raise RecipeError(
        "this run was trained by functions of a Python program or notebook, and no run holds their code: call"
        " plimsoll.plan(loss, ...).train(init, data, run=...) with the same functions and the same data first; in that"
        " program the run can be continued, evaluated and reported. Its metrics, its ledger and its parameters can be"
        " read without them"
    )


def require_same(saved: Mapping[str, Any], now: Mapping[str, Any], *, run: Path) -> None:
    """Raises RecipeError if a run's functions or data differ from those of the recipe `now`.

    Args:
        saved: Content of the run's recipe.json.
        now: The current recipe, in the same form.
        run: Folder of the run.
    """
    if not is_pickled(now):
        raise RecipeError(f"{run} is a run of functions that plimsoll.plan was given: name another run")
    other = [name for name, code in saved["code"].items() if code != now["code"][name]]
    is_opaque = saved["data"].startswith(OPAQUE) or now["data"].startswith(OPAQUE)
    if saved["data"] != now["data"] and not is_opaque:
        other.append("data")
    if other:
        raise RecipeError(
            f"{run} is a run of another {' and another '.join(other)}: its content when the run began has another"
            " SHA-256. Give the original to continue the run, or name another run"
        )


@cache
def folder() -> Path:
    """Returns this process's own folder of pickles and arrays, and removes it when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="plimsoll-code-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.environ[VARIABLE] = str(path)
    return path


def _keys(described: Mapping[str, Any]) -> list[str]:
    """Returns the two keys of a pickle: a hash of its code and its data, and a hash of its code alone."""
    code = json.dumps(described["code"], sort_keys=True)
    return [hashlib.sha256(text.encode()).hexdigest() for text in (f"{code} {described['data']}", code)]


def _read(key: str) -> type[OwnRecipe] | None:
    """Returns the class in a pickle of the parent process; None if it has written none with that key."""
    path = Path(os.environ.get(VARIABLE, os.devnull)) / f"{key}.pickle"
    if not path.is_file():
        return None
    status = path.parent.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RecipeError(
            f"{path.parent}, which {VARIABLE} names, is not this user's alone: no code is taken from there. Unset"
            " the variable, and call plimsoll.plan again"
        )
    beginning, _, pickle = path.read_bytes().partition(b"\n")
    sys.path += [each for each in json.loads(beginning) if each not in sys.path]
    import cloudpickle

    return cloudpickle.loads(pickle)


def _pickled(cls: type[Any]) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if type(obj).__name__ in ("_Missing", "_MISSING_TYPE"):  # compared by identity (equinox, dataclasses)
                return "MISSING"
            reduced: Any = super().reducer_override(obj)
            if isinstance(reduced, tuple) and type(obj).__module__.startswith("equinox."):
                make, (meta, name, bases, namespace, *rest), *state = tuple[Any, ...](reduced)
                return (make, (meta, name, bases, namespace | _fields_of(obj), *rest), *state)
            return reduced

    file = io.BytesIO()
    try:
        Pickler(file).dump(cls)
    except Exception as problem:  # pickling a user's object may raise anything
        raise RecipeError(
            f"the functions cannot be handed to the processes that compile and train: {type(problem).__name__}:"
            f" {problem}. They go there as a pickle: leave open files, locks, threads and devices out of what they use,"
            " or write a recipe into a file (docs/your-own.md)"
        ) from problem
    if file.tell() > MOST_BYTES:
        raise RecipeError(
            f"the functions hold more than {format_bytes(MOST_BYTES)}, and what they hold goes to every process that"
            " compiles and trains. Give arrays as data, as part of the parameters (what is not learned as"
            ' {"trainable": ..., "frozen": ...}), or read them in a function'
        )
    return file.getvalue()


def _fields_of(module: type[Any]) -> dict[str, Any]:
    """Returns the attributes with which cloudpickle must create an Equinox module's class: the metaclass registers
    leaves at once, but cloudpickle sets other attributes only afterwards (equinox 0.13.8)."""
    own = vars(module)
    annotations = own.get("__annotations__", {})
    fields = {field.name: field for field in dataclasses.fields(module) if field.name in annotations}
    filled_in_later = {"__init__": lambda self: None} if "__init__" in own else {}
    return {"__annotations__": dict.fromkeys(fields, object), **fields, **filled_in_later}


def _own(fields: Mapping[str, Any]) -> str:
    """Returns, as JSON, the fields that a recipe adds to `OwnRecipe`. Its code may depend on their values."""
    return json.dumps({name: value for name, value in fields.items() if not hasattr(OwnRecipe, name)})


def _computed(recipe: Recipe) -> dict[str, str]:
    """Returns the SHA-256 of the traces of init, loss (with its gradient) and optimizer, made from shapes alone."""
    import jax

    task = recipe.task(plain_compute())
    rule = recipe.update_rule(STEPS)

    def init() -> Any:
        return task.init(jax.random.key(0))

    def total(trainable: Any, params: Any, batch: Any) -> Any:
        keys = jax.random.split(jax.random.key(0), 2)
        loss, _, metrics = task.loss(params | {"trainable": trainable}, None, batch, keys, train=True)
        return loss.total, (loss.weight, metrics)

    params = jax.eval_shape(init)
    learned = params["trainable"]
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in recipe.spec.batch(2).items()}
    loss = jax.make_jaxpr(jax.value_and_grad(total, has_aux=True))(learned, params, batch)
    with recipe.origin.guard("the optimizer, given the shapes of the parameters,"):
        state = jax.eval_shape(rule.init, learned)
        optimizer = jax.make_jaxpr(rule.update)(learned, state, learned)
    return {"init": _code(jax.make_jaxpr(init)()), "loss": _code(loss), "optimizer": _code(optimizer)}


def _code(traced: Any) -> str:
    """Returns the SHA-256 of a jaxpr and of all its constants.

    The hash is not of StableHLO, because lowering a function starts a device (jax 0.10.2).
    """
    import numpy as np

    digest = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", str(traced)).encode())  # memory addresses of functions
    for value in _constants(traced):
        array = np.asarray(value)
        digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _constants(part: Any) -> Iterator[Any]:
    """Yields the arrays that a jaxpr and its inner jaxprs close over. Scalar constants are in the text of a jaxpr."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    if isinstance(part, ClosedJaxpr):
        yield from part.consts
        yield from _constants(part.jaxpr)
    elif isinstance(part, Jaxpr):
        for equation in part.eqns:
            yield from _constants([*equation.params.values()])
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _constants(item)
