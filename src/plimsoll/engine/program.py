"""A recipe and a plan as executables: the same in the compile child, the rehearsal and the training process."""

from __future__ import annotations

import importlib
import tempfile

import jax
import numpy as np

from plimsoll.engine.executables import Index, compiler_of
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan
from plimsoll.planner.types import Rehearsal
from plimsoll.recipes.recipe import Recipe
from plimsoll.training import distributed, memory, program
from plimsoll.training.checkpoints import Checkpoints


def import_everything(recipe: Recipe, *, tracker: str = "none") -> None:
    """Imports every module the run will use, so that a rehearsal weighs what a training process weighs."""
    from orbax.checkpoint import v1  # noqa: F401  (not importable by its dotted name)

    trackers = [] if tracker == "none" else [tracker]
    for name in ("grain", "tensorboardX", "tokenizers", *recipe.data.imports(), *trackers):
        importlib.import_module(name)


def lowered(recipe: Recipe, plan: Plan, *, steps: int) -> program.Program:
    """Lowers the run's executables: the same in the compile child and in the training process."""
    task, rule = recipe.task(plan.compute(jax.default_backend())), recipe.update_rule(steps, plan.storage)
    return program.lower(
        task,
        rule,
        plan,
        batch=recipe.spec.batch(recipe.effective_batch),
        evaluation_batch=recipe.spec.validation_batch(plan.micro_batch),
        devices=distributed.devices(plan.devices) if plan.devices > 1 else None,
    )


def load(recipe: Recipe, plan: Plan, *, steps: int) -> program.Executables:
    """Loads the executables from the cache, or compiles them, and gives back what each stage left behind."""
    memory.trim()
    index = Index.of(recipe, plan, steps=steps)
    executables = None if index is None else index.load()
    if executables is None:
        functions = lowered(recipe, plan, steps=steps)
        memory.trim()
        executables = program.compile_all(functions, compiler_of(recipe))
        if index is not None:
            index.write(functions)
        del functions
        memory.trim()
    return executables


def rehearse(recipe: Recipe, plan: Plan, *, steps: int) -> Rehearsal:
    """Does what a training process does up to its first step, but for the state. The executables are in the cache."""
    import_everything(recipe)
    executables = load(recipe, plan, steps=steps)
    starting = memory.peak_resident_bytes()
    with tempfile.TemporaryDirectory() as folder:  # Orbax's threads and caches stay after the first save
        checkpoints = Checkpoints(RunFolder(folder), in_background=False)
        checkpoints.save(0, {"empty": jax.device_put(np.zeros(1, np.float32))}, {})
    memory.trim()
    return Rehearsal(
        process_bytes=memory.resident_bytes(),
        starting_bytes=starting,
        init_temp_bytes=temp_bytes(executables.init),
        evaluate_temp_bytes=temp_bytes(executables.evaluate),
    )


def temp_bytes(executable: jax.stages.Compiled | program.Fed) -> int:
    """Returns the compiler's own count of temporaries, 0 where it gives none."""
    stats = executable.memory_analysis()
    return stats.temp_size_in_bytes if stats is not None else 0
