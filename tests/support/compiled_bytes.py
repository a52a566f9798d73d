"""What the compiler says a function needs, from shapes alone: it compiles, and never runs."""

import jax


def temporary_bytes(function, *arguments):
    shapes = jax.eval_shape(lambda: arguments)
    return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
