"""Compiled modules that are written by hand, in XLA's words."""

from jaxlib import _hlo  # its parser of modules in words, which no public name has (jax 0.10.2)

from plimsoll.planner.hlo.module import Module

ANY_MORE = """
more {
  state = (s32[], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  ROOT less = pred[] compare(i, i), direction=LT
}
"""
"""Condition of a loop over a number and 1,024 floats."""


def written(text):
    """Returns the scheduled module whose computations these are."""
    module = _hlo.hlo_module_from_text("HloModule step, is_scheduled=true\n" + text)
    return Module(module.as_serialized_hlo_module_proto())
