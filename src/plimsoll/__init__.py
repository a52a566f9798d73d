"""Train inside a memory budget: the fastest plan that fits, predicted before it runs and measured after.

    import plimsoll

    found = plimsoll.plan("code", memory="768MiB")
    run = plimsoll.train("code", memory="768MiB", run="runs/code")
    run.metrics(), run.params(), run.evaluate()  # and later: plimsoll.load("runs/code")
    for batch in plimsoll.loader("code"): ...

    tune = plimsoll.finetune("Qwen/Qwen2.5-7B-Instruct", data="chats.jsonl", frozen_bits=4)
    found = plimsoll.plan(tune, chip="rtx4090")

Names are loaded when they are first used. `import plimsoll` imports nothing else, and JAX only if a function needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.api.finetune import Tune as Tune
    from plimsoll.api.finetune import finetune as finetune
    from plimsoll.api.loader import loader as loader
    from plimsoll.api.plan import FunctionPlan as FunctionPlan
    from plimsoll.api.plan import RecipePlan as RecipePlan
    from plimsoll.api.plan import plan as plan
    from plimsoll.api.run import Run as Run
    from plimsoll.api.run import load as load
    from plimsoll.api.run import train as train
    from plimsoll.data.hdf5.columns import Hdf5 as Hdf5
    from plimsoll.data.loader_bytes import estimate_memory_usage as estimate_memory_usage
    from plimsoll.errors import BudgetError as BudgetError
    from plimsoll.errors import CheckpointError as CheckpointError
    from plimsoll.errors import DataError as DataError
    from plimsoll.errors import PlimsollError as PlimsollError
    from plimsoll.errors import RecipeError as RecipeError
    from plimsoll.errors import RunError as RunError
    from plimsoll.errors import StoppedError as StoppedError
    from plimsoll.levers.frozen import widened as widened
    from plimsoll.levers.remat import rematerialised as rematerialised
    from plimsoll.optimizers.adam_atan2 import AdamATan2 as AdamATan2
    from plimsoll.optimizers.adamw import AdamW as AdamW
    from plimsoll.optimizers.lion import Lion as Lion
    from plimsoll.optimizers.muon import Muon as Muon
    from plimsoll.optimizers.settings import Optimizer as Optimizer
    from plimsoll.optimizers.settings import Rates as Rates
    from plimsoll.recipes.own.recipe import OwnRecipe as OwnRecipe
    from plimsoll.recipes.own.recipe import recipe as recipe
    from plimsoll.recipes.recipe import Recipe as Recipe
    from plimsoll.recipes.registry import preset as preset

    __version__: str

_MODULES = {
    "plan": "api.plan",
    "RecipePlan": "api.plan",
    "FunctionPlan": "api.plan",
    "train": "api.run",
    "load": "api.run",
    "Run": "api.run",
    "finetune": "api.finetune",
    "Tune": "api.finetune",
    "loader": "api.loader",
    "preset": "recipes.registry",
    "estimate_memory_usage": "data.loader_bytes",
    "recipe": "recipes.own.recipe",
    "AdamW": "optimizers.adamw",
    "AdamATan2": "optimizers.adam_atan2",
    "Lion": "optimizers.lion",
    "Muon": "optimizers.muon",
    "Optimizer": "optimizers.settings",
    "Rates": "optimizers.settings",
    "widened": "levers.frozen",
    "rematerialised": "levers.remat",
    "Hdf5": "data.hdf5.columns",
    "Recipe": "recipes.recipe",
    "OwnRecipe": "recipes.own.recipe",
    "PlimsollError": "errors",
    "BudgetError": "errors",
    "CheckpointError": "errors",
    "DataError": "errors",
    "RecipeError": "errors",
    "RunError": "errors",
    "StoppedError": "errors",
}

__all__ = [
    "AdamATan2",
    "AdamW",
    "BudgetError",
    "CheckpointError",
    "DataError",
    "FunctionPlan",
    "Hdf5",
    "Lion",
    "Muon",
    "Optimizer",
    "OwnRecipe",
    "PlimsollError",
    "Rates",
    "Recipe",
    "RecipeError",
    "RecipePlan",
    "Run",
    "RunError",
    "StoppedError",
    "Tune",
    "__version__",
    "estimate_memory_usage",
    "finetune",
    "load",
    "loader",
    "plan",
    "preset",
    "recipe",
    "rematerialised",
    "train",
    "widened",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from plimsoll.files.provenance import version

        return version()
    if name not in _MODULES:
        module = importlib.import_module("plimsoll")
        raise AttributeError(f"plimsoll has no {name!r}", name=name, obj=module)
    return getattr(importlib.import_module(f"plimsoll.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
