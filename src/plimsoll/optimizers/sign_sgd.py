"""Sign-SGD with decoupled decay, for the rows of a table that a step has read.

    row = row (1 - rate decay) - rate sign(sum of its gradients)

A row that several examples have read is updated once, by the sign of the sum. Rows that no example has read stay as
they are, to the bit: neither gradient nor update is ever of the table's size, and there is no state. signSGD: Bernstein
et al. 2018, https://arxiv.org/abs/1802.04434; sparse as in the code with which the recursive models were trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optax
    from jax import Array
    from jaxtyping import Bool


@dataclass(frozen=True)
class RowRule:
    """Update of the rows of tables that a step has read: see `types.ReadsTables`."""

    schedule: optax.Schedule
    weight_decay: float

    def after(self, tables: Any, rows: Any, gradients: Any, *, step: Array, taken: Bool[Array, ""]) -> Any:
        """Returns the next tables, by name, after `step` (int32) earlier ones; unchanged where the step is not `taken`.

        Donate the tables. Of each, `rows` has the row that an example has read, `gradients` (examples, width).
        """
        import jax
        import jax.numpy as jnp

        rate = jnp.asarray(self.schedule(step))
        new_tables = {}
        for name, table in tables.items():
            examples, beyond = len(rows[name]), len(table)
            read, positions = jnp.unique(rows[name], size=examples, fill_value=beyond, return_inverse=True)
            summed = jax.ops.segment_sum(gradients[name], positions.reshape(-1), num_segments=examples)
            old = table.at[read].get(mode="fill", fill_value=0, indices_are_sorted=True)
            new = old * (1 - rate * self.weight_decay) - rate * jnp.sign(summed)
            chosen = jnp.where(taken, new, old)
            # The padding of `read` is beyond the end.
            new_tables[name] = table.at[read].set(chosen, mode="drop", indices_are_sorted=True)
        return new_tables
