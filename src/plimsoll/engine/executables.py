"""The compiled functions of a run in files of the cache: who loads them neither traces nor lowers.

    compiled/function-*    a function, by the text of what was compiled
    answers/functions-*    which of these a plan has, by what they follow from

JAX pickles executables (jax 0.10.2, an experimental module). The files lie beside those of JAX's own cache, which hold
the same machine code, and are opened only if this user wrote them and nobody else may write to them. A damaged one is
as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from plimsoll.planned import Plan
from plimsoll.planner.child import processor, software_digest
from plimsoll.planner.space import same_step
from plimsoll.processes.cache import cache_folder
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registered import names_of
from plimsoll.training import memory, program
from plimsoll.types import StepOptions
from plimsoll.values import to_json

OURS = "plimsoll."
"""Beginning of the names of this package's modules."""
NAMES = "init", "evaluate", "step"
LONGEST_CONSTANT = 1024
"""Numbers of a constant up to which it is part of the text."""
LEFT_OUT, UNNAMED = "__elided__", "loc(unknown)"
"""Words of the compiler for a longer constant, and for an argument without a name: the text does not say all."""
SHA256_BYTES = 32
"""Bytes at the beginning of a file, the digest of the others."""
OTHERS_MAY_WRITE = 0o022
HIT = "/jax/compilation_cache/cache_hits"
"""JAX's event of a function that its own cache had. Such a one has lost its machine code, and is not written again."""


def is_ours(recipe: Recipe) -> bool:
    """Returns whether all code of model and optimizer is this package's."""
    parts = {"model": recipe.model, "optimizer": recipe.optimizer}
    modules = [type(part).__module__ for part in parts.values()]
    return None not in names_of(parts).values() and all(name.startswith(OURS) for name in modules)


def compiler_of(recipe: Recipe) -> Callable[..., jax.stages.Compiled]:
    """Returns what compiles functions of a recipe: what a user's own code hands over cannot always be pickled."""
    return compiled if is_ours(recipe) else program.compiled


def compiled(lowered: jax.stages.Lowered, *, deterministic: bool = True) -> jax.stages.Compiled:
    """Returns a function, compiled: from its file, which is written if there is none."""
    path = path_of(lowered)
    ready = None if path is None else _read(path)
    if ready is None:
        with _new_ones() as is_new:
            ready = program.compiled(lowered, deterministic=deterministic)
        if path is not None and is_new():
            _write(path, zlib.compress(pickle.dumps(serialize_executable.serialize(ready)), level=1))
    return ready


def path_of(lowered: jax.stages.Lowered) -> Path | None:
    """Returns the file of a function; None where its text does not say all, or where it is for several devices."""
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return None
    module: Any = lowered.compiler_ir()
    text = module.operation.get_asm(large_elements_limit=LONGEST_CONSTANT)
    (main,) = (function for function in module.body.operations if function.name.value == "main")
    arguments = [str(argument.location) for argument in main.arguments]  # those that are used
    if LEFT_OUT in text or UNNAMED in arguments:
        return None
    signature = [arguments, str(lowered.in_tree), str(lowered.out_tree)]
    compiler = [version("jax"), version("jaxlib"), program.COUNTED, _flags(), processor()]
    follows_from = [text, *signature, *compiler]
    return cache_folder() / "compiled" / f"function-{_digest(follows_from)}"


@dataclass(frozen=True)
class Index:
    """A file that says which functions a plan has, so that they are found without being lowered."""

    path: Path

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> Index | None:
        """Returns the index of a plan; None where only tracing says what is computed: code of others, or files."""
        if not is_ours(recipe) or recipe.hints.begins_with or plan.devices > 1 or jax.default_backend() != "cpu":
            return None
        parts = {"model": recipe.model, "optimizer": recipe.optimizer}
        follows_from = {
            "parts": names_of(parts),
            "options": {role: asdict(part) for role, part in parts.items()},
            "spec": recipe.spec.to_json(),
            "batch": recipe.effective_batch,
            "steps": steps,
            "levers": to_json(same_step(plan)),
            "options_of_step": to_json(options),
            "software": software_digest(),
            "flags": _flags(),
        }
        return cls(cache_folder() / "answers" / f"functions-{_digest(follows_from)}.json")

    def load(self) -> program.Executables | None:
        """Loads the plan's functions; None if one of them is not there."""
        compiled_folder = self.path.parents[1] / "compiled"
        try:
            files = json.loads(self.path.read_text())
            paths = {name: compiled_folder / files[name] for name in NAMES}
        except (OSError, ValueError, LookupError, TypeError):  # not there, or damaged
            return None
        functions = {}
        for name, path in paths.items():
            functions[name] = _read(path)
            memory.trim()  # loading one leaves tens of MiB that the next would come on top of
            if functions[name] is None:
                return None
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), functions["init"].out_info)
        return program.executables(**functions, state=state)

    def write(self, lowered: program.Program) -> None:
        """Notes which functions the plan has, if all of them have a file."""
        paths = {name: path_of(getattr(lowered, name)) for name in NAMES}
        if all(path is not None and path.exists() for path in paths.values()):
            _replace(self.path, json.dumps({name: path.name for name, path in paths.items() if path}).encode())


@contextlib.contextmanager
def _new_ones() -> Iterator[Any]:
    """Yields a function that says whether what this thread has compiled here was new to JAX's cache."""
    thread, hits = threading.get_ident(), []

    def listen(event: str, **_: Any) -> None:
        if event == HIT and threading.get_ident() == thread:
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield lambda: not hits
    finally:
        jax.monitoring.unregister_event_listener(listen)


def _read(path: Path) -> jax.stages.Compiled | None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & OTHERS_MAY_WRITE:
                return None
            content = file.read()
    except OSError:
        return None
    digest, packed = content[:SHA256_BYTES], content[SHA256_BYTES:]
    if digest != hashlib.sha256(packed).digest():
        return None
    parts = pickle.loads(zlib.decompress(packed))
    return serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])


def _write(path: Path, packed: bytes) -> None:
    _replace(path, hashlib.sha256(packed).digest() + packed)


def _replace(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or not at all. A cache that takes nothing more does without."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)


def _flags() -> dict[str, str]:
    """Returns the variables that JAX and XLA read."""
    return {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}


def _digest(follows_from: Any) -> str:
    return hashlib.sha256(json.dumps(follows_from, sort_keys=True).encode()).hexdigest()[:32]
