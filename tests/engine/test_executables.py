"""Compiled functions in files: found without being lowered, the same to the bit, compiled again where damaged."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from plimsoll.engine import executables, program
from plimsoll.engine.executables import Files, compiled
from plimsoll.planned import Plan
from plimsoll.planner.space import same_step
from plimsoll.training.program import compiled as usually_compiled
from plimsoll.types import Levers, StepOptions
from task_examples import OWN, RECIPES

PLAN = Plan(
    chip="cpu",
    accumulation=2,
    levers=Levers(micro_batch=4, remat="none", loss_chunk=0, precision="float32", prefetch=1, async_save=True),
)
STEPS = 10
USUAL = StepOptions()
OF_JAX = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture(autouse=True)
def _own_caches(tmp_path, monkeypatch):
    """A cache of this package, and one of JAX, which are empty."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    usual = {name: getattr(jax.config, name) for name in OF_JAX}
    set_cache(jax_compilation_cache_dir=str(tmp_path / "jax"), jax_persistent_cache_min_compile_time_secs=0.0)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by its int32 count
        yield
    set_cache(**usual)


def set_cache(**options):
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def recipe():
    return RECIPES["stories"]()


@pytest.fixture
def lowerings(monkeypatch):
    """How often functions were lowered."""
    calls, lowered = [], program.lowered
    monkeypatch.setattr(program, "lowered", lambda *args, **kw: calls.append(args) or lowered(*args, **kw))
    return calls


def files(folder, name):
    return sorted(folder.rglob(name))


def taken(functions, recipe):
    """State and metrics after two steps, and metrics of an evaluation."""
    random = np.random.default_rng(0)

    def batch(spec):
        return {name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in spec.items()}

    state = functions.init(np.uint32(3))
    for _ in range(2):
        state, metrics = functions.step(state, batch(recipe.spec.batch(recipe.effective_batch)))
    evaluation = functions.evaluate(state["params"], batch(recipe.spec.validation_batch(PLAN.micro_batch)))
    return jax.tree.map(np.asarray, (state, metrics, evaluation))


def test_the_second_process_lowers_nothing_and_computes_the_same_bits(recipe, lowerings, tmp_path):
    first = program.load(recipe, PLAN, USUAL, steps=STEPS)
    second = program.load(recipe, PLAN, USUAL, steps=STEPS)
    assert len(lowerings) == 1
    assert len(files(tmp_path, "function-*")) == 3
    assert second.in_heap == first.in_heap
    assert second.step.memory_analysis().alias_size_in_bytes == first.step.memory_analysis().alias_size_in_bytes > 0
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), first.state)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), second.state) == shapes
    jax.tree.map(np.testing.assert_array_equal, taken(second, recipe), taken(first, recipe))


@pytest.mark.parametrize("change", ["a bit", "its end", "nothing of it", "another may write"])
def test_what_is_damaged_or_not_our_own_is_compiled_again(recipe, lowerings, tmp_path, change):
    program.load(recipe, PLAN, USUAL, steps=STEPS)
    file = files(tmp_path, "function-*")[0]
    content = file.read_bytes()
    if change == "a bit":
        file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif change == "its end":
        file.write_bytes(content[:-1])
    elif change == "nothing of it":
        file.unlink()
    else:
        file.chmod(0o666)
    program.load(recipe, PLAN, USUAL, steps=STEPS)
    assert len(lowerings) == 2


def test_another_users_file_is_not_opened(recipe, lowerings, monkeypatch):
    program.load(recipe, PLAN, USUAL, steps=STEPS)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    program.load(recipe, PLAN, USUAL, steps=STEPS)
    assert len(lowerings) == 2


def test_whatever_functions_follow_from_is_in_the_name(recipe, monkeypatch):
    usual = Files.of(recipe, PLAN, USUAL, steps=STEPS)
    assert Files.of(recipe, PLAN.with_levers(prefetch=2, async_save=False), USUAL, steps=STEPS) == usual
    assert Files.of(recipe.replace(seed=7), PLAN, USUAL, steps=STEPS) == usual
    others = [
        Files.of(recipe, PLAN, USUAL, steps=STEPS + 1),
        Files.of(recipe, PLAN, StepOptions(norms="layers"), steps=STEPS),
        Files.of(recipe, PLAN, StepOptions(donates=False), steps=STEPS),
        Files.of(recipe, PLAN.with_levers(remat="block"), USUAL, steps=STEPS),
        Files.of(recipe.replace(learning_rate=0.5), PLAN, USUAL, steps=STEPS),
        Files.of(recipe.replace(batch_size=2 * recipe.effective_batch), PLAN, USUAL, steps=STEPS),
        Files.of(recipe.replace(seq_len=2 * recipe.spec.tokens), PLAN, USUAL, steps=STEPS),
    ]
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --xla_cpu_enable_fast_math=true")
    others.append(Files.of(recipe, PLAN, USUAL, steps=STEPS))
    monkeypatch.undo()
    monkeypatch.setattr(executables, "software_digest", lambda: "another version")
    others.append(Files.of(recipe, PLAN, USUAL, steps=STEPS))
    assert len({usual, *others}) == 10


@pytest.mark.parametrize("name", ["plain_jax", "equinox_mlp"])
def test_code_of_others_has_no_files(name):
    assert Files.of(OWN[name](), PLAN, USUAL, steps=STEPS) is None


def test_a_file_that_is_gone_comes_back_whatever_jaxs_cache_has(recipe, lowerings, tmp_path):
    """What that loads has lost its machine code (jaxlib 0.10.2): written to a file, it would fail in its first call."""
    lowered = program.lowered(recipe, PLAN, USUAL, steps=STEPS)
    for function in (lowered.init, lowered.evaluate, lowered.step):
        usually_compiled(function)
    assert files(tmp_path / "jax", "*-cache")
    lowerings.clear()

    program.load(recipe, PLAN, USUAL, steps=STEPS)
    for file in files(tmp_path, "function-*"):
        file.unlink()
    again = program.load(recipe, PLAN, USUAL, steps=STEPS)
    assert len(lowerings) == 2
    assert len(files(tmp_path, "function-*")) == 3

    loaded = program.load(recipe, PLAN, USUAL, steps=STEPS)
    assert len(lowerings) == 2
    jax.tree.map(np.testing.assert_array_equal, taken(loaded, recipe), taken(again, recipe))


def test_other_functions_are_in_jaxs_cache_as_before(tmp_path):
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    compiled(jax.jit(lambda x: jnp.sin(x) * 3.25).lower(scalar), tmp_path / "function")
    assert (tmp_path / "function").exists()
    assert not files(tmp_path / "jax", "*-cache")
    compiled(jax.jit(lambda x: jnp.cos(x) * 7.75).lower(scalar), None)
    assert files(tmp_path / "jax", "*-cache")


def test_the_child_and_the_process_that_trains_name_a_plan_alike(recipe):
    """The child gets the levers that are compiled alone."""
    told = same_step(PLAN)
    assert Files.of(recipe, told, USUAL, steps=STEPS) == Files.of(recipe, PLAN, USUAL, steps=STEPS)
