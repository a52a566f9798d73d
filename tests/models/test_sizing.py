"""A target becomes a shape of sane proportions within 2 %, or a refusal whose advice works."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import RecipeError
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import ASPECT_RATIOS, HEAD_WIDTHS, inner_width, sized
from small_tasks import parameters_of

VOCABULARIES = [256, 8192, 50257]


def assert_sane(shape, target):
    low, high = ASPECT_RATIOS
    assert abs(parameters_of(shape) - target) <= 0.02 * target
    assert shape.layers >= 1
    assert low <= shape.width / shape.layers <= high
    assert shape.head_width in HEAD_WIDTHS
    assert shape.width % 32 == 0
    assert shape.inner % 8 == 0
    assert 0.75 <= shape.inner / (shape.width * 8 / 3) <= 1.34


@settings(max_examples=examples(40, usual=12), deadline=None)
@given(
    target=st.floats(6, 9).map(lambda power: round(10**power)),
    vocab=st.sampled_from(VOCABULARIES),
    tied=st.booleans(),
)
def test_a_target_is_met_or_explicitly_unreachable(target, vocab, tied):
    try:
        assert_sane(sized(target, vocab=vocab, tied=tied), target)
    except RecipeError:
        assert target < 12 * vocab * 32 * (1 if tied else 2)  # only where the embedding is most of the model


@settings(max_examples=examples(40, usual=8), deadline=None)
@given(target=st.floats(4, 7).map(lambda power: round(10**power)), vocab=st.integers(2, 200_000), tied=st.booleans())
def test_what_a_refusal_advises_can_be_asked_for(target, vocab, tied):
    try:
        sized(target, vocab=vocab, tied=tied)
    except RecipeError as refused:
        nearest = re.search(r"for ([\d,]+)(?: or ([\d,]+))? parameters", str(refused))
        for count in filter(None, nearest.groups()):
            advised = int(count.replace(",", ""))
            assert_sane(sized(advised, vocab=vocab, tied=tied), advised)


@given(width=st.integers(1, 512).map(lambda n: 32 * n))
def test_the_inner_width_is_a_multiple_near_eight_thirds(width):
    inner = inner_width(width)
    assert inner % 64 == 0
    assert abs(inner - width * 8 / 3) <= 32


@pytest.mark.parametrize(("width", "heads"), [(100, 3), (96, 32)])
def test_a_width_that_heads_do_not_divide_evenly_is_refused(width, heads):
    with pytest.raises(RecipeError, match=rf"--width {width} cannot be split over --heads {heads}.*--heads 3"):
        DecoderShape(vocab=10, width=width, layers=1, heads=heads, inner=64)
