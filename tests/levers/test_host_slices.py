"""A step that was compiled for an H100 reads and writes the host's memory where its indices say."""

import json
import subprocess
from dataclasses import replace

import jaxlib.version
import pytest

from planner_examples import plan, problem
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.planner import chips
from plimsoll.planner.hlo.module import Module
from plimsoll.processes import toolchains
from plimsoll.processes.environment import for_processes
from plimsoll.recipes.registry import preset
from plimsoll.training.program import LAST_WRONG_RULE
from plimsoll.values import to_json
from slice_walks import slices
from subjects import subject_of
from task_examples import RECIPES

SIZES = {
    "stories": {"width": 128, "layers": 4, "ema_decay": 0.9},
    "control": {"width": 128, "layers": 4},
    "longcontext": {"width": 128, "layers": 4},
    "sudoku-mlp": {"width": 128},
    "sudoku-attention": {"width": 128},
}
"""Recipe to fields with which its leaves are large enough to be moved, several layers as one piece."""
FROZEN = """
import jax, jax.numpy as jnp, numpy as np, plimsoll
from plimsoll.levers.frozen import frozen_dot

WIDTH, LAYERS = 128, 4

def init(key):
    kernels = jax.random.normal(key, (LAYERS, WIDTH, WIDTH))
    return {"trainable": {"kernels": 0.1 * kernels}, "frozen": {"kernels": kernels}}

def loss(params, batch, *, compute):

    def block(x, layer):
        return x + jnp.tanh(x @ layer["learned"] + frozen_dot(x, layer["frozen"], compute))

    step = plimsoll.rematerialised(block, compute.remat)
    layers = {"learned": params["trainable"]["kernels"], "frozen": params["frozen"]["kernels"]}
    x, _ = jax.lax.scan(lambda x, layer: (step(x, layer), None), batch["x"], layers)
    return jnp.sum(jnp.square(x)), x.size

recipe = plimsoll.recipe(
    init=init, loss=loss, data=lambda: {"x": np.ones((64, WIDTH), np.float32)}, optimizer=plimsoll.AdamW(),
    batch_size=8, steps=3,
    supported=("remat", "remat_offload", "frozen_bits", "frozen_offload"),
)
"""
"""A user's recipe of frozen layers, learned ones beside them: no other kind may leave frozen weights on the host."""
COMPILED = """
import json, pathlib, sys
from plimsoll.engine.answers import Answers
from plimsoll.planned import Plan
from plimsoll.planner.types import Subject
from plimsoll.values import from_json

folder = pathlib.Path(sys.argv[1])
for number, (subject, plan, more) in enumerate(json.loads((folder / "steps.json").read_text())):
    answers, plan = Answers(from_json(Subject, subject, "subject")), from_json(Plan, plan, "plan")
    answers.backend.options |= more
    lowered, _ = answers.steps.lowered(plan)
    compiled = answers.backend.compile(lowered, deterministic=plan.deterministic)
    (module,) = compiled.runtime_executable().hlo_modules()
    (folder / f"{number}.hlo").write_bytes(module.as_serialized_hlo_module_proto())
    sizes = compiled.memory_analysis()
    temporaries = [sizes.temp_size_in_bytes, sizes.host_temp_size_in_bytes]
    (folder / f"{number}.json").write_text(json.dumps(temporaries))
"""
"""Program that compiles steps for the H100."""


def compiled(folder, steps):
    """Returns the module of each step, and its temporaries on the device and on the host.

    Args:
        folder: Empty.
        steps: Recipe, plan, and compiler options besides those of training.
    """
    python = toolchains.python_for("cuda")
    if python is None:
        pytest.skip("the compiler for GPUs is not installed: plimsoll chips --install cuda")
    questions = [(subject_of(recipe, "h100"), plan, more) for recipe, plan, more in steps]
    (folder / "steps.json").write_text(json.dumps(to_json(questions)))
    command = [str(python), "-c", COMPILED, str(folder)]
    done = subprocess.run(command, env=for_processes("cuda"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    modules = [Module((folder / f"{number}.hlo").read_bytes()) for number in range(len(steps))]
    temporaries = [json.loads((folder / f"{number}.json").read_text()) for number in range(len(steps))]
    return modules, temporaries


def kinds():
    """Returns one recipe of each kind; of the puzzles, whose loops are alike, one."""
    small = {name: make() for name, make in RECIPES.items() if name != "sudoku-attention"}
    small["finetune"] = small["finetune"].replace(lora_rank=16)
    return {name: recipe.replace(**SIZES.get(name, {})) for name, recipe in small.items()}


@pytest.fixture
def frozen(tmp_path):
    path = tmp_path / "frozen_layers.py"
    path.write_text(FROZEN)
    return preset(str(path))


def of_the_host():
    """Returns every value of a lever, by its name, that is refused where no host can be reached, and only there."""
    linked = chips.rates(chips.chip("h100"))
    alone = replace(linked, host_link_bytes=0.0)
    wanted = problem(2**30, chip="h100", platform="cuda")
    listed = []
    for lever in LEVERS.values():
        for value in lever.values if lever.refused else ():
            if lever.refused(wanted, alone, value) and not lever.refused(wanted, linked, value):
                listed.append((lever.name, value))
    return listed


def values_for(recipe):
    """Returns those of them that a recipe supports."""
    return [(name, value) for name, value in of_the_host() if LEVERS[name].missing(value, recipe.hints.levers) is None]


def halves(recipe, **levers):
    """Returns a plan in two micro-batches, its layers in a loop."""
    count = recipe.effective_batch // 2
    return plan(chip="h100", micro_batch=count, accumulation=2).with_levers(unroll=0, **levers)


def one_by_one(recipe):
    """Returns a plan for each of the values, and one for all of them and weights in NF4."""
    single = {f"{name} {value}": halves(recipe, **{name: value}) for name, value in values_for(recipe)}
    return single | {"all, NF4": halves(recipe, **dict(values_for(recipe)), frozen_bits=4)}


def at_once(recipe):
    """Returns a plan with the last value of each lever."""
    return halves(recipe, **dict(values_for(recipe)))


def layer_by_layer(recipe):
    """Returns a plan of such a step, beside which no optimizer's state may be offloaded."""
    whole = {"micro_batch": recipe.effective_batch, "accumulation": 1, "layerwise": recipe.hints.layerwise}
    return Plan.from_dict(halves(recipe, remat="offload").to_dict() | whole)


def test_the_registry_names_the_values_that_need_a_host():
    assert of_the_host() == [
        ("remat", "offload"),
        ("offload", "frozen"),
        ("offload", "optimizer"),
        ("offload", "all"),
    ]


@pytest.mark.slow
def test_every_lever_that_needs_a_host_reads_and_writes_it_where_its_indices_say(frozen, tmp_path):
    """Each value of the registry alone, in a recipe that supports them all; and all of them in every kind of recipe."""
    plans = one_by_one(frozen)
    assert plans.keys() >= {f"{name} {value}" for name, value in of_the_host()}
    recipes = kinds()
    steps = {words: (frozen, one, {}) for words, one in plans.items()}
    steps |= {name: (recipe, at_once(recipe), {}) for name, recipe in recipes.items()}
    steps["stories, layer by layer"] = (recipes["stories"], layer_by_layer(recipes["stories"]), {})
    modules, _ = compiled(tmp_path, [*steps.values()])
    for name, module in zip(steps, modules, strict=True):
        listed = slices(module)
        assert any(one.on_host for one in listed), f"{name}: no loop reaches the host"
        assert [one for one in listed if one.is_wrong] == [], name


@pytest.mark.slow
def test_wrong_rules_are_found_and_without_them_temporaries_are_the_same(frozen, tmp_path):
    """The compiler as `passes_left_out` does not leave it: what the test above is for."""
    plans = one_by_one(frozen)
    with_rules = {"xla_disable_hlo_passes": "rematerialization"}
    steps = [(frozen, one, more) for one in plans.values() for more in (with_rules, {})]
    modules, temporaries = compiled(tmp_path, steps)
    for number, words in enumerate(plans):
        listed = [one for one in slices(modules[2 * number]) if one.on_host]
        assert all(one.ruled for one in listed), words
        assert any(one.is_wrong for one in listed) == (jaxlib.version.__version_info__ <= LAST_WRONG_RULE), words
        before, after = temporaries[2 * number : 2 * number + 2]
        assert after == pytest.approx(before, rel=0.01), words
