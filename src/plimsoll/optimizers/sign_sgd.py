"""Sign-SGD with decoupled decay, for the rows of a table that a step reads.

    row = row (1 - rate decay) - rate sign(sum of its gradients)

A row that several examples read is updated once, by the sign of the sum. Other rows do not change. No gradient or
update has the size of the table, and there is no state. signSGD: Bernstein et al. 2018,
https://arxiv.org/abs/1802.04434; sparse as in the code of TRM
(https://arxiv.org/abs/2510.04871).
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
    """Update of the rows of tables that a step reads: see `types.ReadsTables`."""

    schedule: optax.Schedule
    weight_decay: float

    def after(self, tables: Any, rows: Any, gradients: Any, *, step: Array, taken: Bool[Array, ""]) -> Any:
        """Returns the updated tables, by name. Donate `tables` in the jitted step, so that they are updated in place.

        Args:
            tables: Tables, by name.
            rows: Index of the row that each example reads, by name of the table.
            gradients: Gradients of these rows, (examples, width), by name of the table.
            step: Number of earlier steps, int32.
            taken: If False, the tables do not change.
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
            # `read` is padded with an index beyond the last row, which "drop" ignores.
            new_tables[name] = table.at[read].set(chosen, mode="drop", indices_are_sorted=True)
        return new_tables
