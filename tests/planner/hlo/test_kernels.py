"""The kernels of modules that are written by hand, as NVIDIA's compiler leaves them."""

import json
from collections import Counter

import pytest

from plimsoll.planner.hlo.kernels import Kernel, Product
from plimsoll.planner.hlo.work import work_of
from written_modules import ANY_MORE, written


def read(text):
    return work_of(written(text), seconds_of=lambda kernel: kernel.moved_bytes).kernels


GEMM = """custom-call(x, w), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{
 "dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],
 "lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},"precision_config":{"operand_precision":["PRECISION","PRECISION"]}}}"""
GEMM = GEMM.replace("\n", "")


@pytest.mark.parametrize(("dtype", "asked", "precision"), [
    ("bf16", "DEFAULT", "bfloat16"), ("f16", "DEFAULT", "float16"), ("f32", "DEFAULT", "tf32"),
    ("f32", "HIGHEST", "float32"),
])  # fmt: skip
def test_a_product_of_cublas_and_its_units(dtype, asked, precision):
    found = read(f"""
ENTRY main {{
  x = {dtype}[64,128] parameter(0)
  w = {dtype}[128,32] parameter(1)
  both = ({dtype}[64,32], s8[4096]) {GEMM.replace("PRECISION", asked)}
  ROOT y = {dtype}[64,32] get-tuple-element(both), index=0
}}""")
    size = {"bf16": 2, "f16": 2, "f32": 4}[dtype]
    product = Product(precision=precision, batch=1, rows=64, cols=32, inner=128)
    moved = size * (64 * 128 + 128 * 32 + 64 * 32)  # and not its workspace
    assert found == Counter({Kernel(moved_bytes=moved, product=product): 1})
    assert product.flops == 2 * 64 * 32 * 128


ADDED = """
added {
  a = f32[1024] parameter(0)
  ROOT b = f32[1024] add(a, a)
}
"""


def loop(config):
    return f"""{ADDED}
body {{
  state = (s32[], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[1024] get-tuple-element(state), index=1
  y = f32[1024] fusion(x), kind=kLoop, calls=added
  ROOT next = (s32[], f32[1024]) tuple(i, y)
}}
{ANY_MORE}
ENTRY main {{
  state = (s32[], f32[1024]) parameter(0)
  ROOT done = (s32[], f32[1024]) while(state), condition=more, body=body{config}
}}"""


@pytest.mark.parametrize(("config", "times"), [
    (', backend_config={"known_trip_count":{"n":"12"}}', 12), ("", 1),
])  # fmt: skip
def test_the_body_of_a_loop_counts_as_often_as_it_runs(config, times):
    assert read(loop(config)) == Counter({Kernel(moved_bytes=2 * 4096): times})


def test_of_an_operand_that_is_sliced_the_slices_are_read_and_of_an_update_its_part_is_written():
    found = read("""
taken {
  all = f32[100,1024] parameter(0)
  into = f32[100,1024] parameter(1)
  at = s32[] parameter(2)
  zero = s32[] constant(0)
  row = f32[1,1024] dynamic-slice(all, at, zero), dynamic_slice_sizes={1,1024}
  ROOT put = f32[100,1024] dynamic-update-slice(into, row, at, zero)
}
ENTRY main {
  all = f32[100,1024] parameter(0)
  into = f32[100,1024] parameter(1)
  at = s32[] parameter(2)
  ROOT put = f32[100,1024] fusion(all, into, at), kind=kLoop, calls=taken
}""")
    assert found == Counter({Kernel(moved_bytes=4096 + 4096 + 4): 1})


def test_a_product_inside_a_fusion_is_found():
    found = read("""
triton {
  x = bf16[64,128] parameter(0)
  w = bf16[128,32] parameter(1)
  ROOT y = f32[64,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY main {
  x = bf16[64,128] parameter(0)
  w = bf16[128,32] parameter(1)
  ROOT y = f32[64,32] fusion(x, w), kind=kCustom, calls=triton
}""")
    product = Product(precision="bfloat16", batch=1, rows=64, cols=32, inner=128)
    assert found == Counter({Kernel(moved_bytes=2 * (64 * 128 + 128 * 32) + 4 * 64 * 32, product=product): 1})


@pytest.mark.parametrize(("target", "mask", "cols", "inner"), [
    ("__cudnn$fmhaSoftmax", "CAUSAL", 64, 2 * 32), ("__cudnn$fmhaSoftmax", "NO_MASK", 128, 2 * 32),
    ("__cudnn$fmhaSoftmaxBackward", "CAUSAL", 64, 5 * 32),
])  # fmt: skip
def test_an_attention_of_cudnn_is_two_products_forward_and_five_backward(target, mask, cols, inner):
    scores = {"dimensions": ["2", "4", "128", "128"]}
    config = json.dumps({"cudnn_fmha_backend_config": {"mask_type": mask, "intermediate_tensor_shape": scores}})
    (kernel,) = read(f"""
ENTRY main {{
  q = bf16[2,128,4,32] parameter(0)
  both = (bf16[2,128,4,32], u8[64]) custom-call(q, q, q), custom_call_target="{target}", backend_config={config}
  ROOT y = bf16[2,128,4,32] get-tuple-element(both), index=0
}}""")
    assert kernel.product == Product(precision="bfloat16", batch=8, rows=128, cols=cols, inner=inner, attention=True)
    assert kernel.moved_bytes == 4 * 2 * (2 * 128 * 4 * 32)


def test_of_branches_the_one_that_moves_most_counts():
    found = read(f"""{ADDED}
nothing {{
  a = f32[1024] parameter(0)
  ROOT b = f32[1024] bitcast(a)
}}
twice {{
  a = f32[1024] parameter(0)
  b = f32[1024] fusion(a), kind=kLoop, calls=added
  ROOT c = f32[1024] fusion(b), kind=kLoop, calls=added
}}
ENTRY main {{
  which = pred[] parameter(0)
  x = f32[1024] parameter(1)
  ROOT y = f32[1024] conditional(which, x, x), true_computation=twice, false_computation=nothing
}}""")
    assert found == Counter({Kernel(moved_bytes=2 * 4096): 2})


def test_what_goes_over_a_link_and_what_only_renames_a_value_is_no_kernel():
    found = read("""
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[1024] parameter(0)
  host = f32[1024]{0:S(5)} parameter(1)
  summed = f32[1024] all-reduce(x), to_apply=sum
  fetched = f32[1024] copy(host)
  renamed = f32[32,32] bitcast(summed)
  copied = f32[32,32] copy(renamed)
  ROOT both = (f32[32,32], f32[1024]) tuple(copied, fetched)
}""")
    assert found == Counter({Kernel(moved_bytes=2 * 4096): 1})
