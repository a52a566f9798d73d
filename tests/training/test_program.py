"""What the compiled functions of a run say about themselves."""

import jax
import jax.numpy as jnp
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
