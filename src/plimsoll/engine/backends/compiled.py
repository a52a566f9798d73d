"""Memory analysis and HLO module of a compiled step."""

from __future__ import annotations

from typing import Any

import jax

from plimsoll.planner.hlo.buffers import largest_temporaries
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.types import Analysis
from plimsoll.training import memory


def analysis_of(step: jax.stages.Compiled, **figures: Any) -> Analysis:
    """Returns an `Analysis` with the bytes of a compiled step.

    Args:
        step: The compiled step.
        figures: Further fields of `Analysis`.
    """
    stats = step.memory_analysis()
    assert stats is not None
    largest = largest_temporaries(step)
    memory.trim()
    return Analysis(
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        temp_bytes=stats.temp_size_in_bytes,
        largest=tuple(largest),
        **figures,
    )


def module_of(step: jax.stages.Compiled) -> Module:
    """Returns the optimized HLO module of a compiled step."""
    executable: Any = step.runtime_executable()
    (module,) = executable.hlo_modules()
    return Module(module.as_serialized_hlo_module_proto())
