"""What the compiled functions of a run say about themselves."""

import jax
import jax.numpy as jnp
import jaxlib.version
import pytest

from plimsoll.training import program
from plimsoll.training.memory import SMALLEST_MAPPED


@pytest.mark.parametrize(("elements", "in_heap"), [(8, True), (SMALLEST_MAPPED // 4, False)])
def test_a_step_is_from_the_heap_where_its_temporaries_are_smaller_than_a_mapped_buffer(elements, in_heap):
    """Two sums over one array that is made for them, and no longer than that."""

    def step(state, batch):
        made = jnp.sort(state["x"] * batch)
        return state, {"loss": jnp.sum(made), "middle": made[elements // 2]}

    state = {"x": jax.ShapeDtypeStruct((elements,), jnp.float32)}
    lowered = jax.jit(step).lower(state, jax.ShapeDtypeStruct((), jnp.float32))
    executables = program.compile_all(program.Program(init=lowered, step=lowered, evaluate=lowered, state=state))
    assert executables.in_heap is in_heap


@pytest.mark.parametrize(
    ("release", "has_wrong_rules"),
    [((0, 10, 2), True), ((0, 11, 0), True), ((0, 11, 1), False), ((0, 12, 0), False), ((0, 12, 0, 1), False)],
)
def test_slices_have_no_rules_where_a_release_makes_them_wrong(release, has_wrong_rules):
    """As compiled and looked at under each. 0.11.0 has no pass "fusion-dynamic-memcpy-rewriter" any more."""
    left_out = program.passes_left_out(release)
    assert ("dynamic-slice-annotator" in left_out) is has_wrong_rules
    assert "rematerialization" in left_out


@pytest.mark.parametrize("deterministic", [True, False])
def test_whatever_is_compiled_for_a_card_is_compiled_without_them(deterministic):
    class Lowered:
        def compile(self, *, compiler_options):
            return compiler_options

    options = program.compiled(Lowered(), platform="gpu", deterministic=deterministic)
    left_out = program.passes_left_out(jaxlib.version.__version_info__)
    assert options["xla_disable_hlo_passes"].split(",") == [*left_out]
