"""The plan does not change the result: with any lever of exact numerics a step computes what the plain plan computes.

Levers come from the registry, so that a new one is drawn without a line here. Everything is compiled and run in a
process with two devices (tests/support/plan_results.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from plain_code import PLAIN_CODE
from plan_results import DEVICES, EXAMPLES, FAULTS, LENGTH, RECIPES, plan_of, recipe_of
from plimsoll.levers.lever import Problem
from plimsoll.levers.registry import LEVERS
from plimsoll.planner.types import Rates
from plimsoll.processes.environment import SHARING
from plimsoll.recipes.recipe import KINDS

SUPPORT = Path(__file__).parents[1] / "support"
ENDS_SOON = "--xla_cpu_collective_call_terminate_timeout_seconds=60"
"""Devices that wait for one another for a minute end their process; `SHARING` allows half an hour."""
ROUNDING = 1e-6
"""Most that a figure may be off, relative to its size, where float32 sums are taken in another order."""
MORE_ROUNDING = {
    ("control", "gradients"): 2e-6,  # of biases: sums over all time steps, in which terms cancel
    ("finetune", "gradients"): 3e-6,  # a Gemma has norms behind every part, which divide what was rounded by its size
}
"""The same by a recipe's kind and figure, where rounding is larger, with the reason."""
MORE_WHERE_DRAWN = 1e-5
"""The same of gradients over rows drawn at random, where the sum over rows may cancel nearly whole; a fault is 1e-4."""


@pytest.fixture(scope="module")
def differences():
    """Returns a function of a case to how far each figure is from the plain plan's, computed in another process."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]),
        "XLA_FLAGS": f"{PLAIN_CODE} {SHARING} {ENDS_SOON}",
        "NPROC": "8",  # threads of XLA: two devices wait for one another, and with two threads sometimes for ever
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
    }
    command = [sys.executable, str(SUPPORT / "plan_results.py")]
    processes = []

    def start():
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)

    def ask(case):
        process = processes[-1]
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline() or "{}")

    def answer(**case):
        if processes[-1].poll() is not None:
            start()
        result = ask(case)
        if not result:  # two devices that waited for each other on two busy cores: XLA has ended the process
            start()
            result = ask(case)
        return result

    start()
    yield answer
    for process in processes:
        process.stdin.close()
        process.wait()


def require_equal(differences, name, *, drawn=False):
    assert differences, "the process that computes the plans has ended: its error is above"
    kind = recipe_of(name).kind
    for figure, difference in differences.items():
        part = figure.partition(" ")[0]
        allowed = MORE_ROUNDING.get((kind, part), ROUNDING)
        if drawn and part == "gradients":
            allowed = MORE_WHERE_DRAWN
        assert difference <= allowed, f"{figure} of {name} is {difference:.2g} off"


# --- Plans that are drawn ---

RATES = Rates(
    flops={"float32": 1.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="test", host_link_bytes=1.0
)
"""Of a card with a host beside it, for which no lever is refused that a CPU can run as well."""
NUMBERS = (*range(9), 11, 16, LENGTH, LENGTH + 3)
"""Values of a lever that is any whole number: sizes that divide a row, that do not, and that are larger."""
MOST_LEVERS = 5
"""Levers of a plan that is drawn."""
SLOW = ("puzzles, MLP", "recommend, frozen model", "finetune")
QUICK = tuple(name for name in RECIPES if name not in SLOW)
"""Recipes that are held in every run of the tests; the others are of the slow ones."""


def exact_levers():
    return [lever for lever in LEVERS.values() if lever.touches == "exact" and lever.compiled]


def is_possible(name, levers, devices):
    """Returns True if a user may pin these levers: nothing is refused, and the recipe makes use of each."""
    recipe, pins = recipe_of(name), plan_of(levers, devices).levers
    problem = Problem(
        recipe=name,
        chip="h100",
        platform="cuda",
        devices=devices,
        effective_batch=EXAMPLES,
        numerics="exact",
        supported=recipe.hints.levers,
        loss_chunks=(),
        layerwise=recipe.hints.layerwise,
        pins=pins,
    )
    for lever in exact_levers():
        value = pins[lever.name]
        if lever.missing(value, recipe.hints.levers) is not None:
            return False
        if lever.refused is not None and lever.refused(problem, RATES, value) is not None:
            return False
    micro_batch = pins["micro_batch"]
    return EXAMPLES % micro_batch == 0 and micro_batch % devices == 0


@st.composite
def plans(draw, names, batches):
    """Draws a recipe, levers that go together, none of them plain, and batches of documents and padding."""
    name = draw(st.sampled_from(names))
    devices = draw(st.sampled_from([1, DEVICES]))
    levers = {}
    for lever in draw(st.permutations(exact_levers())):
        others = [value for value in lever.values or NUMBERS if lever.allows(value) and value != lever.plain]
        possible = [value for value in others if is_possible(name, levers | {lever.name: value}, devices)]
        if possible and len(levers) < MOST_LEVERS:
            levers[lever.name] = draw(st.sampled_from(possible))
    seeds = draw(st.lists(st.integers(1, 2**16), min_size=batches, max_size=batches))
    return {"name": name, "levers": levers, "devices": devices, "seeds": seeds}


def drawn(plans_of_a_test):
    """Tries plans as they are drawn: each costs seconds, so that no smaller one is sought where one fails."""
    return settings(max_examples=plans_of_a_test, phases=[Phase.generate])


@drawn(1)
@given(case=plans(QUICK, batches=2))
def test_a_plan_that_is_drawn_computes_what_the_plain_plan_does(differences, case):
    require_equal(differences(**case), case["name"], drawn=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_many_plans_of_each_recipe_do_so(differences, name):
    """Three plans of each recipe and seven batches of each plan: 210 results."""

    @drawn(3)
    @given(case=plans((name,), batches=7))
    def each(case):
        require_equal(differences(**case), name, drawn=True)

    each()


# --- Plans that are fixed: every lever, and rows of every kind (`plan_results.DOCUMENTS`) ---

BLOCKS = {"attention_chunk": 8, "loss_chunk": 11, "remat": "block"}
CASES = {
    "text": {"layerwise": 2, "remat": "block", "fsdp": 2, "loss_chunk": 13},
    "longcontext": {"micro_batch": 4, "fsdp": 2, **BLOCKS},
    "control": {"micro_batch": 2, "fsdp": 2, "remat": "dots", "offload": "optimizer"},
    "puzzles, attention": {"micro_batch": 4, "attention_chunk": 4, "remat": "block"},
    "puzzles, MLP": {"micro_batch": 2, "offload": "optimizer"},
    "recommend": {"micro_batch": 2, "fsdp": 2, **BLOCKS},
    "recommend, frozen model": {"micro_batch": 2, "mlp_chunk": 5, **BLOCKS},
    "finetune": {"offload": "optimizer", "micro_batch": 4, **BLOCKS, "remat": "offload"},
    "finetune, windows, LoRA": {"micro_batch": 1, "mlp_chunk": 5, **BLOCKS},
    "own": {"micro_batch": 4, "fsdp": 2},
}


def test_every_kind_is_held_here():
    assert RECIPES.keys() == CASES.keys()
    assert {recipe_of(name).kind for name in RECIPES} == {*KINDS.values(), "file"}


def test_every_exact_lever_has_a_value_that_is_drawn():
    for lever in exact_levers():
        values = [value for value in lever.values or NUMBERS if lever.allows(value) and value != lever.plain]
        beside = {"remat": "block"} if lever.name != "remat" else {}
        assert any(is_possible(name, beside | {lever.name: value}, DEVICES) for name in RECIPES for value in values), (
            lever.name
        )


@pytest.mark.slow_cases(*SLOW)
@pytest.mark.parametrize("name", CASES)
def test_padding_and_documents_of_every_kind_give_what_the_plain_plan_gives(differences, name):
    levers = CASES[name]
    assert is_possible(name, levers, levers.get("fsdp", 1))
    require_equal(differences(name=name, levers=levers, devices=levers.get("fsdp", 1), seeds=[0]), name)


def test_a_fault_that_is_put_in_by_hand_is_found(differences):
    case = {"name": "finetune, windows, LoRA", "seeds": [0], "only_evaluated": True}
    case |= {"levers": BLOCKS | {"micro_batch": 1}, "devices": 1}  # rows alone: another may need what one needs not
    require_equal(differences(**case), case["name"])
    for fault in FAULTS:
        apart = differences(**case, fault=fault)
        with pytest.raises(AssertionError):
            require_equal(apart, case["name"])
        assert max(apart.values()) > 100 * ROUNDING, fault
