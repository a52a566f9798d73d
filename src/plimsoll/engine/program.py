"""A recipe and a plan as executables: the same in the compile child, a trial and the training process."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from plimsoll.engine.executables import Files
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan, Process
from plimsoll.recipes.recipe import Recipe
from plimsoll.training import distributed, memory, program
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.types import StepOptions


def import_everything(recipe: Recipe, *, tracker: str = "none") -> None:
    """Imports every module the run will use, so that a trial weighs what a training process weighs."""
    from orbax.checkpoint import v1  # noqa: F401  (not importable by its dotted name)

    trackers = [] if tracker == "none" else [tracker]
    for name in ("grain", "tensorboardX", "tokenizers", *recipe.data.imports(), *trackers):
        importlib.import_module(name)


def functions_of(
    recipe: Recipe,
    plan: Plan,
    options: StepOptions,
    *,
    steps: int,
    backend: str | None = None,
    devices: Sequence[Any] | None = None,
) -> program.Functions:
    """Returns the functions of a recipe under a plan, for every process that compiles, times or runs them.

    Args:
        recipe: The recipe.
        plan: Its plan.
        options: What the user sets about the step.
        steps: Length of the schedule.
        backend: JAX's name of the platform that they are for; this process's own if left out.
        devices: Devices that they are lowered for; None for the only one of this process.
    """
    task = recipe.task(plan.compute(backend or jax.default_backend()))
    rule = recipe.update_rule(steps, plan.storage)
    return program.Functions(task, rule, plan, options, devices)


def functions_here(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> program.Functions:
    """Returns the functions of a recipe under a plan, for the devices of this process and of those it trains with."""
    devices = distributed.devices(plan.devices) if plan.devices > 1 else None
    return functions_of(recipe, plan, options, steps=steps, devices=devices)


def lowered(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> program.Program:
    """Lowers the run's executables: the same in the compile child and in the training process."""
    return functions_here(recipe, plan, options, steps=steps).program(
        batch=recipe.spec.batch(recipe.effective_batch),
        evaluation_batch=recipe.spec.validation_batch(plan.micro_batch),
    )


def load(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> program.Executables:
    """Loads the executables from the cache, or compiles them, and gives back what each stage left behind."""
    memory.trim()
    files = Files.of(recipe, plan, options, steps=steps)
    executables = None if files is None else files.load()
    if executables is None:
        functions = lowered(recipe, plan, options, steps=steps)
        memory.trim()
        executables = program.compile_all(functions, None if files is None else files.compiled)
        del functions
        memory.trim()
    return executables


def try_out(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> Process:
    """Does what a training process does from its imports to its first step, but for the state, and weighs this process.

    The plan's functions are in the cache.
    """
    executables = load(recipe, plan, options, steps=steps)
    loading = memory.peak_resident_bytes()
    with tempfile.TemporaryDirectory() as folder:  # Orbax's threads and caches stay after the first save
        checkpoints = Checkpoints(RunFolder(folder), in_background=False)
        checkpoints.save(0, {"empty": jax.device_put(np.zeros(1, np.float32))}, {})
    memory.trim()
    resident = memory.resident_bytes()
    del executables  # held until now
    return Process(resident_bytes=resident, loading_bytes=loading)


def temp_bytes(executable: jax.stages.Compiled | program.Fed) -> int:
    """Returns the compiler's own count of temporaries, 0 where it gives none."""
    stats = executable.memory_analysis()
    return stats.temp_size_in_bytes if stats is not None else 0
