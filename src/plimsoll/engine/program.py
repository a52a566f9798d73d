"""Compiled functions of a recipe under a plan, for training and for the processes that compile and measure plans."""

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
    """Imports all modules that training uses, so that a trial process has the resident memory of training."""
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
    """Returns a recipe's functions (init, step, evaluate) under a plan, ready to be traced and lowered.

    Args:
        recipe: The recipe.
        plan: The recipe's plan.
        options: Options of the training step.
        steps: Length of the learning rate schedule in optimizer steps.
        backend: JAX's name of the platform to compile for; by default that of this process.
        devices: Devices that the functions are lowered for; None for the only device of this process.
    """
    task = recipe.task(plan.compute(backend or jax.default_backend()))
    rule = recipe.update_rule(steps, plan.storage)
    return program.Functions(task, rule, plan, options, devices)


def functions_here(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> program.Functions:
    """Returns a recipe's functions (init, step, evaluate) under a plan, for the devices of all training processes."""
    devices = distributed.devices(plan.devices) if plan.devices > 1 else None
    return functions_of(recipe, plan, options, steps=steps, devices=devices)


def lowered(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> program.Program:
    """Lowers a recipe's functions (init, step, evaluate) under a plan, for the devices of all training processes."""
    return functions_here(recipe, plan, options, steps=steps).program(
        batch=recipe.spec.batch(recipe.effective_batch),
        evaluation_batch=recipe.spec.validation_batch(plan.micro_batch),
    )


def load(recipe: Recipe, plan: Plan, options: StepOptions, *, steps: int) -> program.Executables:
    """Loads a recipe's compiled functions from cache files, or compiles them. Gives freed memory back to the system."""
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
    """Measures the resident memory of a process that has loaded the compiled functions and saved a tiny checkpoint.

    This is the memory of training before its first step, without state. The functions must be in cache files already.
    """
    executables = load(recipe, plan, options, steps=steps)
    loading = memory.peak_resident_bytes()
    with tempfile.TemporaryDirectory() as folder:  # a first save, because Orbax's threads and caches stay in memory
        checkpoints = Checkpoints(RunFolder(folder), in_background=False)
        checkpoints.save(0, {"empty": jax.device_put(np.zeros(1, np.float32))}, {})
    memory.trim()
    resident = memory.resident_bytes()
    del executables  # must be alive while the resident set is measured
    return Process(resident_bytes=resident, loading_bytes=loading)


def temp_bytes(executable: jax.stages.Compiled | program.Fed) -> int:
    """Returns the bytes of temporaries that XLA reports for an executable; 0 without a report."""
    stats = executable.memory_analysis()
    return stats.temp_size_in_bytes if stats is not None else 0
