"""What benchmarks/offline_card.py counts in a compiled step: kernels and bytes, a loop's as often as it turns."""

import importlib.util
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

MODULE = """HloModule jit_step, is_scheduled=true

%fused (p: f32[8]) -> bf16[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %c = bf16[8]{0} convert(%p)
}

%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%t), index=1
  %half = bf16[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %call = (bf16[8]{0}, u8[0]{0}) custom-call(%half, %half), custom_call_target="__cudnn$fmhaSoftmax"
  ROOT %r = (s32[], f32[8]{0}) tuple(%i, %x)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %init = (s32[], f32[8]{0}) tuple(%zero, %a)
  %loop = (s32[], f32[8]{0}) while(%init), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %left = f32[8]{0} get-tuple-element(%loop), index=1
  ROOT %copy = f32[8]{0} copy(%left)
}
"""


def test_kernels_and_bytes_of_a_loop_count_as_often_as_it_turns(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("offline_card", BENCHMARKS / "offline_card.py")
    benchmark = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "offline_card", benchmark)
    spec.loader.exec_module(benchmark)
    counted = benchmark.Counted(MODULE)
    assert counted.kernels == 3 * 2 + 1
    assert counted.bytes == 3 * ((32 + 16) + (16 + 2 * 16)) + 2 * 32
    assert counted.calls["cudnn"] == 3
