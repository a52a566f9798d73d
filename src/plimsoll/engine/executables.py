"""The compiled functions of a run in files of the cache: who loads them neither traces nor lowers.

    compiled/function-DIGEST-NAME    `init`, `evaluate` or `step` of a plan, by all that they follow from

JAX pickles executables (jax 0.10.2, an experimental module). Files are opened only if this user wrote them and nobody
else may write to them. A damaged one is as good as none. What JAX's own cache loads has lost its machine code and could
not be written here, so these functions are compiled past that cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from plimsoll.planned import Plan
from plimsoll.planner.child import software_digest
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
READ_BY_JAX = "JAX_", "XLA_"
"""Beginnings of the names of variables that JAX and XLA read."""
SHA256_BYTES = 32
"""Bytes at the beginning of a file, the digest of the others."""
OTHERS_MAY_WRITE = 0o022


def are_ours(parts: Mapping[str, Any]) -> bool:
    """Returns whether all code of a recipe's parts is this package's."""
    modules = [type(part).__module__ for part in parts.values()]
    return None not in names_of(parts).values() and all(name.startswith(OURS) for name in modules)


@dataclass(frozen=True)
class Files:
    """Files of a plan's functions. They need not be there."""

    digest: str
    """Of all that the functions follow from."""

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> Files | None:
        """Returns the files of a plan on one CPU device; None elsewhere, and where only a trace tells what it is."""
        parts = {"model": recipe.model, "optimizer": recipe.optimizer}
        if not are_ours(parts) or recipe.hints.begins_with or plan.devices > 1 or jax.default_backend() != "cpu":
            return None
        follows_from = {
            "parts": names_of(parts),
            "options": {role: asdict(part) for role, part in parts.items()},
            "spec": recipe.spec.to_json(),
            "batch": recipe.effective_batch,
            "steps": steps,
            "levers": to_json(same_step(plan)),
            "options_of_step": to_json(options),
            "software": software_digest(),
            "flags": {name: value for name, value in os.environ.items() if name.startswith(READ_BY_JAX)},
        }
        text = json.dumps(follows_from, sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32])

    def path(self, name: str) -> Path:
        """Returns the file of one of NAMES."""
        return cache_folder() / "compiled" / f"function-{self.digest}-{name}"

    def load(self) -> program.Executables | None:
        """Loads the plan's functions; None if one of them is not there."""
        functions = {}
        for name in NAMES:
            functions[name] = _read(self.path(name))
            memory.trim()  # loading one leaves tens of MiB that the next would come on top of
            if functions[name] is None:
                return None
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), functions["init"].out_info)
        return program.executables(**functions, state=state)

    def compiled(self, name: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Returns one of the functions, compiled."""
        return compiled(lowered, self.path(name))


def compiled(lowered: jax.stages.Lowered, file: Path | None) -> jax.stages.Compiled:
    """Returns a function, compiled: from its file, if it has one, which is written if it is not there."""
    if file is None:
        return program.compiled(lowered)
    function = _read(file)
    if function is None:
        with _past_jaxs_cache():
            function = program.compiled(lowered)
        content = zlib.compress(pickle.dumps(serialize_executable.serialize(function)), level=1)
        _write(file, hashlib.sha256(content).digest() + content)
    return function


@contextlib.contextmanager
def _past_jaxs_cache() -> Iterator[None]:
    """Makes JAX neither read nor write its own cache. It looks at its setting once, unless its cache is reset."""
    usual = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", usual)
        compilation_cache.reset_cache()


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


def _write(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or not at all. A cache that takes nothing more does without."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
