"""Cache files with a plan's compiled functions. A process that loads the functions need not trace or lower them.

    compiled/function-DIGEST-NAME    NAME: `init`, `evaluate` or `step`. DIGEST: hash of what the function depends on

JAX pickles executables (jax 0.10.2, an experimental module). A file is read only if this user wrote it and nobody else
may write to it. A damaged file is ignored. An executable from JAX's own cache has lost its machine code and cannot be
serialized again, so these functions are compiled with JAX's cache switched off.
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
"""Prefix of the names of plimsoll's own modules."""
NAMES = "init", "evaluate", "step"
"""Names of a plan's compiled functions."""
READ_BY_JAX = "JAX_", "XLA_"
"""Prefixes of the environment variables that JAX and XLA read."""
SHA256_BYTES = 32
"""Length of the digest at the beginning of a file, which covers the rest of the file."""
OTHERS_MAY_WRITE = 0o022
"""Permission bits of a file by which its group or everyone may write to it."""


def are_ours(parts: Mapping[str, Any]) -> bool:
    """Returns True if plimsoll itself defines all parts of a recipe, like model and optimizer, without user code."""
    modules = [type(part).__module__ for part in parts.values()]
    return None not in names_of(parts).values() and all(name.startswith(OURS) for name in modules)


@dataclass(frozen=True)
class Files:
    """Cache files of a plan's compiled functions. The files need not exist."""

    digest: str
    """Hash of everything that the functions depend on: recipe, plan, software versions, compiler flags."""

    @classmethod
    def of(cls, recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> Files | None:
        """Returns the cache files for a plan's functions; None if they are not cached.

        They are not cached for several devices, accelerators, user code, and recipes with initial weights from files.
        """
        parts = {"model": recipe.model, "optimizer": recipe.optimizer}
        if not are_ours(parts) or recipe.hints.begins_with or plan.devices > 1 or jax.default_backend() != "cpu":
            return None
        dependencies = {
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
        text = json.dumps(dependencies, sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32])

    def path(self, name: str) -> Path:
        """Returns the path of the file for a function. `name` is one of NAMES."""
        return cache_folder() / "compiled" / f"function-{self.digest}-{name}"

    def load(self) -> program.Executables | None:
        """Loads the plan's functions. Returns None if any of their files is missing or damaged."""
        functions = {}
        for name in NAMES:
            functions[name] = _read(self.path(name))
            memory.trim()  # loading a function leaves tens of MiB in the heap
            if functions[name] is None:
                return None
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), functions["init"].out_info)
        return program.executables(**functions, state=state)

    def compiled(self, name: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Loads a function from its file, or compiles it and writes the file."""
        return compiled(lowered, self.path(name))


def compiled(lowered: jax.stages.Lowered, file: Path | None) -> jax.stages.Compiled:
    """Loads a function from `file`, or compiles it and writes `file`. Only compiles if `file` is None."""
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
    """Context manager that switches JAX's compilation cache off. JAX notices the change only after a reset."""
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
    """Writes a cache file atomically. Errors of the file system are ignored: the cache is optional."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
