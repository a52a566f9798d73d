"""A recipe and a plan as executables: the same in the compile child, the rehearsal and the training process."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable

import jax
import numpy as np

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


def load(recipe: Recipe, plan: Plan, *, steps: int, wait: Callable[[], object] = lambda: None) -> program.Executables:
    """Loads the executables from the compile cache, and gives back what each stage of starting left behind.

    `wait` is called before they are looked for there.
    """
    memory.trim()
    program_ = lowered(recipe, plan, steps=steps)
    wait()
    memory.trim()
    executables = program.compile_all(program_)
    del program_
    memory.trim()
    return executables


def rehearse(recipe: Recipe, plan: Plan, *, steps: int, wait: Callable[[], object]) -> Rehearsal:
    """Does what a training process does up to its first step, but for the state.

    `wait` returns when the executables are in the compile cache.
    """
    import_everything(recipe)
    executables = load(recipe, plan, steps=steps, wait=wait)
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
