"""On a GPU two runs of a plan are equal unless the user gives that up: what its compiler is told, and by whom."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import pytest

from for_cuda import answer_for_cuda
from making import made
from planner_examples import FakeCompiler, problem, search
from plimsoll.engine.answers import Answers
from plimsoll.engine.backends import topology
from plimsoll.engine.trial import prepare
from plimsoll.errors import RecipeError
from plimsoll.planned import Plan
from plimsoll.report.tables import lever_rows, plan_words
from plimsoll.training import program
from plimsoll.units import GIB
from subjects import subject_of

RECIPE = made(
    "stories", dataset_id="there-is-no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=4
)
IN_ORDER = {"xla_gpu_deterministic_ops": True, "xla_gpu_enable_triton_gemm": False}
IN_ANY_ORDER = {"xla_gpu_deterministic_ops": False, "xla_gpu_exclude_nondeterministic_ops": False}
"""Said, since XLA_FLAGS may say otherwise."""
AS_BEFORE = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


class Lowered:
    """A lowered function that remembers how it was compiled."""

    def __init__(self):
        self.options = []

    def compile(self, compiler_options=None):
        self.options.append(compiler_options)
        return SimpleNamespace()


@pytest.mark.parametrize(
    ("platform", "deterministic", "options"),
    [
        ("cpu", False, AS_BEFORE),
        ("tpu", True, None),
        ("gpu", True, program.AS_PLANNED | IN_ORDER),
        ("gpu", False, program.AS_PLANNED | IN_ANY_ORDER),
    ],
)
def test_the_options_of_a_compiler_follow_from_its_platform_and_the_lever(platform, deterministic, options):
    lowered = Lowered()
    program.compiled(lowered, platform=platform, deterministic=deterministic)
    assert lowered.options == [options]


@pytest.mark.parametrize("deterministic", [True, False])
def test_all_executables_of_a_run_are_compiled_as_its_plan_says(deterministic, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    functions = [Lowered(), Lowered(), Lowered()]
    program.compile_all(program.Program(*functions, state={}, deterministic=deterministic))
    expected = program.AS_PLANNED | (IN_ORDER if deterministic else IN_ANY_ORDER)
    assert [each.options for each in functions] == 3 * [[expected]]


def step_plan(name, **levers):
    levers = {"micro_batch": 4, "accumulation": 1, "loss_chunk": 0, "remat": "none", "precision": "bfloat16"} | levers
    return Plan.from_dict({"chip": name, "prefetch": 0, "async_save": False, **levers})


class Asked(Exception):
    """Raised in place of a compile."""


@pytest.mark.parametrize(
    ("name", "deterministic"), [("cpu", True), ("h100", True), ("h100", False), ("tpu-v5e-1", False)]
)
def test_what_is_planned_is_compiled_as_it_will_run(name, deterministic, monkeypatch):
    """In the compile child for this machine, and in the one for a chip that is elsewhere."""
    monkeypatch.setattr(topology.topology, "devices", lambda _: jax.devices())
    monkeypatch.setattr(topology.unassembled, "options", lambda _: {})
    answers = Answers(subject_of(RECIPE, name))

    def compiled(lowered, *, platform=None, deterministic=True, more=None):
        raise Asked(platform, deterministic)

    monkeypatch.setattr(program, "compiled", compiled)
    plan = step_plan(name, deterministic=deterministic, precision="float32")
    backend = {"cpu": None, "h100": "gpu", "tpu-v5e-1": "tpu"}[name]
    with pytest.raises(Asked) as asked:
        answers.analyse(plan)
    assert asked.value.args == (backend, deterministic)
    if name != "cpu":
        with pytest.raises(Asked) as asked:
            prepare(answers.steps, answers.backend, plan, "compile")
        assert asked.value.args == (backend, deterministic)


@pytest.mark.parametrize(("name", "platform"), [("cpu", "cpu"), ("tpu-v5e-1", "tpu")])
def test_where_it_would_change_nothing_a_pin_is_refused(name, platform):
    about = problem(GIB, chip=name, platform=platform, pins={"deterministic": False})
    with pytest.raises(RecipeError, match=f"--deterministic False would change nothing on {name}: .* Leave it out"):
        search(about, FakeCompiler())
    kept = dataclasses.replace(about, platform="cpu", pins={"deterministic": True})
    assert search(kept, FakeCompiler()).plan.deterministic


def test_only_the_user_gives_it_up_and_the_plan_says_so_from_then_on():
    def found(**pins):
        about = problem(GIB, chip="h100", platform="cuda", numerics="compressed", pins=pins)
        return search(about, FakeCompiler()).plan

    usual, free = found(), found(deterministic=False)
    assert usual.deterministic
    assert "deterministic" not in plan_words(usual) + str(lever_rows(usual))
    assert (free.deterministic, free.numerics) == (False, "mixed")
    assert "not deterministic" in plan_words(free)
    assert lever_rows(free)["deterministic"] == "no: two runs of this plan differ by rounding"
    kept = json.loads(json.dumps(free.to_dict()))
    assert kept["deterministic"] is False
    assert Plan.from_dict(kept) == free
    assert not free.with_levers(micro_batch=1).deterministic


FOR_A_GPU = """
import json
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from plimsoll.engine.answers import Answers
from plimsoll.engine.trial import prepare
from plimsoll.planned import Plan
from plimsoll.planner.chips import chip
from plimsoll.planner.topology import devices
from plimsoll.planner.types import Subject
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict
from plimsoll.training import program
from plimsoll.types import Levers, StepOptions

h100 = chip("h100")
recipe = preset("code").replace(layers=1)
subject = Subject(recipe=to_dict(recipe), steps=10, step_options=StepOptions(), chip=h100, compiler=("jax",))
answers = Answers(subject)
found = {}
for deterministic in (True, False):
    plan = Plan(chip="h100", accumulation=1, levers=Levers(micro_batch=64, remat="none", loss_chunk=0,
                precision="bfloat16", prefetch=0, async_save=False, deterministic=deterministic))
    lowered, _ = answers.steps.lowered(plan)
    step = answers.backend.compile(lowered, deterministic=deterministic)
    found["deterministic" if deterministic else "free"] = step.as_text().count("gemm_fusion")

place = SingleDeviceSharding(devices(h100)[0])
shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=place)
def loss(kernels, x):
    for kernel in kernels:
        x = jnp.sin(x @ kernel) * jnp.cos(x)
    return jnp.sum(x * x)
large = jax.jit(jax.grad(loss)).lower([shape(4096, 4096) for _ in range(24)], shape(2**18, 4096))
for name, compiled in (("XLA's choice", large.compile()), ("ours", program.compiled(large, platform="gpu"))):
    found[name] = compiled.as_text().count(".remat")
print(json.dumps(found))
"""


@pytest.mark.slow
def test_nvidias_compiler_takes_the_options():
    """Of steps for an H100: no product is Triton's, so that none can lack a configuration, as they did with jax 0.11;
    and what is larger than the card (380 GiB here) is not recomputed of the compiler's own accord."""
    found = answer_for_cuda(FOR_A_GPU)
    assert found["deterministic"] == 0 < found["free"]
    assert found["ours"] == 0 < found["XLA's choice"]
