"""Convolutions weighed in a process of their own, as training's are."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from plimsoll.engine import compile as compiling
from plimsoll.engine import weigh
from plimsoll.planner.hlo.convolutions import Convolution
from plimsoll.processes.request import ask
from written_modules import written

MIB = 2**20


def square(batch, size, channels, kernel, filters, *, result, stride=1, dilation=1, groups=1, padding):
    """A convolution over squares."""
    return Convolution(
        batch=batch, operand=(size, size), channels=channels, kernel=(kernel, kernel), filters=filters,
        result=(result, result), strides=(stride, stride), padding=(padding, padding), dilation=(dilation, dilation),
        kernel_dilation=(1, 1), groups=groups, itemsize=4,
    )  # fmt: skip


DEPTHWISE = square(64, 16, 64, 3, 64, result=16, groups=64, padding=(1, 1))


@pytest.mark.slow
def test_the_resident_set_of_a_process_holds_what_the_formula_says():
    """The gradient of the operand of one with stride 2; one with stride 1; one with stride 2 and the largest kernel."""
    gradient = square(128, 8, 96, 5, 96, result=16, dilation=2, padding=(3, 2))
    plain = square(128, 16, 96, 3, 96, result=16, padding=(1, 1))
    strided = square(16, 16, 256, 7, 128, result=8, stride=2, padding=(2, 3))
    every = [gradient, plain, strided]
    taken = ask("weigh", {"convolutions": [asdict(each) for each in every]})["bytes"]
    for each, bytes_ in zip(every, taken, strict=True):
        assert bytes_ - 4 * MIB < each.beside(cores=2) < bytes_ + 12 * MIB
    assert taken[0] > 70 * MIB


@pytest.mark.slow
def test_a_grouped_convolution_is_weighed():
    weighed = weigh.weighed([DEPTHWISE])
    assert 0 < weighed[DEPTHWISE] <= DEPTHWISE.most_bytes


def test_what_this_machine_has_no_room_for_is_charged_the_most(monkeypatch):
    asked = []
    monkeypatch.setattr(weigh, "ask", lambda verb, request, seconds: asked.append(request) or {"bytes": [MIB]})
    monkeypatch.setattr(weigh.host, "available_bytes", lambda: DEPTHWISE.array_bytes + DEPTHWISE.most_bytes - 1)
    assert weigh.weighed([DEPTHWISE]) == {DEPTHWISE: DEPTHWISE.most_bytes}
    assert asked == []
    monkeypatch.setattr(weigh.host, "available_bytes", lambda: DEPTHWISE.array_bytes + DEPTHWISE.most_bytes)
    assert weigh.weighed([DEPTHWISE]) == {DEPTHWISE: MIB}
    assert len(asked) == 1


def test_what_takes_too_long_to_weigh_is_charged_the_most(monkeypatch):
    monkeypatch.setattr(weigh, "ASKED_SECONDS", 0.01)
    assert weigh.weighed([DEPTHWISE]) == {DEPTHWISE: DEPTHWISE.most_bytes}


def test_a_step_is_charged_its_largest_and_none_is_weighed_twice(monkeypatch):
    step = written("""
ENTRY main {
  x = f32[64,16,16,64] parameter(0)
  k = f32[3,3,1,64] parameter(1)
  a = f32[64,16,16,64] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=64
  ROOT b = f32[64,16,16,64] convolution(a, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=64
}""")  # noqa: E501
    asked = []
    monkeypatch.setattr(compiling, "weighed", lambda each: asked.append(set(each)) or dict.fromkeys(each, 9 * MIB))
    compiler = SimpleNamespace(_weighed={})
    assert compiling.LocalCompiler.packed(compiler, step) == 9 * MIB
    assert compiling.LocalCompiler.packed(compiler, step) == 9 * MIB
    assert asked == [{DEPTHWISE}, set()]
