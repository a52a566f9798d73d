"""A target becomes a shape of sane proportions within 2 %, or a refusal whose advice works."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import RecipeError
from plimsoll.models.sizing import ASPECT_RATIOS, HEAD_WIDTHS, DecoderShape, inner_width, sized

VOCABULARIES = [256, 8192, 50257]


def assert_sane(shape, target):
    low, high = ASPECT_RATIOS
    assert abs(shape.parameters() - target) <= 0.02 * target
    assert shape.layers >= 1
    assert low <= shape.width / shape.layers <= high
    assert shape.head_width in HEAD_WIDTHS
    assert shape.width % 32 == 0
    assert shape.inner % 8 == 0
    assert 0.75 <= shape.inner / (shape.width * 8 / 3) <= 1.34


def sized_or_refused(target, vocab, tied):
    try:
        return sized(target, vocab=vocab, tied=tied), None
    except RecipeError as refused:
        return None, str(refused)


@settings(max_examples=examples(40, usual=12), deadline=None)
@given(
    target=st.floats(6, 9).map(lambda power: round(10**power)),
    vocab=st.sampled_from(VOCABULARIES),
    tied=st.booleans(),
)
def test_a_target_is_met_or_explicitly_unreachable(target, vocab, tied):
    shape, refusal = sized_or_refused(target, vocab, tied)
    if shape is not None:
        assert_sane(shape, target)
        return
    assert "unreachable" in refusal
    assert target < 12 * vocab * 32 * (1 if tied else 2)  # only where the embedding is most of the model


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("target", [10**6, 10**7, 10**8, 10**9])
def test_round_targets(target, vocab):
    if target == 10**6 and vocab == 50257:
        with pytest.raises(RecipeError, match="ask for 1,618,560 parameters"):
            sized(target, vocab=vocab)
        return
    assert_sane(sized(target, vocab=vocab), target)


@settings(max_examples=examples(40, usual=8), deadline=None)
@given(target=st.floats(4, 7).map(lambda power: round(10**power)), vocab=st.integers(2, 200_000), tied=st.booleans())
def test_what_a_refusal_advises_can_be_asked_for(target, vocab, tied):
    _, refusal = sized_or_refused(target, vocab, tied)
    if refusal is None:
        return
    nearest = re.search(r"for ([\d,]+)(?: or ([\d,]+))? parameters", refusal)
    advised = [int(count.replace(",", "")) for count in nearest.groups() if count]
    for one in advised:
        assert_sane(sized(one, vocab=vocab, tied=tied), one)


@given(width=st.integers(1, 512).map(lambda n: 32 * n))
def test_the_inner_width_is_a_multiple_near_eight_thirds(width):
    inner = inner_width(width)
    assert inner % 64 == 0
    assert abs(inner - width * 8 / 3) <= 32


@pytest.mark.parametrize(("width", "heads"), [(100, 3), (96, 32)])
def test_a_width_that_heads_do_not_divide_evenly_is_refused(width, heads):
    with pytest.raises(RecipeError, match=rf"--width {width} cannot be split over --heads {heads}.*--heads 3"):
        DecoderShape(vocab=10, width=width, layers=1, heads=heads, inner=64)
