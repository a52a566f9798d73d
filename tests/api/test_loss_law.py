"""The law of the final loss: Hoffmann's numbers, tokens that are read again, and what earlier runs change."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.api.loss_law import NOISE, LossLaw, Observed, corrected, effective_tokens

PRIOR = LossLaw()
SIZES = st.floats(1e5, 1e11)
TOKENS = st.floats(1e6, 1e13)


@pytest.mark.parametrize(
    ("parameters", "tokens", "loss"),
    [
        (70e9, 1.4e12, 1.9366),  # Chinchilla: 1.69 + 406.4 / 70e9^0.34 + 410.7 / 1.4e12^0.28
        (280e9, 300e9, 1.9933),  # Gopher
        (1.0, 1.0, 1.69 + 406.4 + 410.7),
    ],
)
def test_golden_the_law_is_hoffmanns(parameters, tokens, loss):
    assert PRIOR.loss(parameters, tokens) == pytest.approx(loss, rel=5e-5)


@given(parameters=SIZES, tokens=TOKENS)
def test_more_parameters_and_more_tokens_lower_the_loss(parameters, tokens):
    low, high = PRIOR.interval(parameters, tokens)
    loss = PRIOR.loss(parameters, tokens)
    assert low < loss < high
    assert PRIOR.loss(2 * parameters, tokens) < loss
    assert PRIOR.loss(parameters, 2 * tokens) < loss


@pytest.mark.parametrize(("epochs", "worth"), [(0.5, 0.5), (1, 1), (2, 1.9682), (4, 3.7257), (16, 10.583)])
def test_golden_epochs_after_the_first_count_less(epochs, worth):
    """Muennighoff et al. 2023: four epochs are nearly as good as new tokens, sixteen are not."""
    assert effective_tokens(epochs * 1e6, 1e6) == pytest.approx(worth * 1e6, rel=1e-4)
    assert effective_tokens(epochs * 1e6, None) == epochs * 1e6


@given(unique=st.floats(1e4, 1e10), epochs=st.floats(1, 1000), more=st.floats(1.01, 10))
def test_a_token_that_is_read_again_counts_for_something_and_for_no_more_than_a_new_one(unique, epochs, more):
    fewer, tokens = effective_tokens(epochs * unique, unique), effective_tokens(more * epochs * unique, unique)
    assert fewer <= tokens <= more * fewer * (1 + 1e-9)
    assert tokens <= 16.4 * unique


def runs_of(law, sizes, noise=0.0):
    return [
        Observed(size, tokens, law.loss(size, tokens) * math.exp(noise * (-1) ** number))
        for number, (size, tokens) in enumerate(sizes)
    ]


TRUTH = LossLaw((-0.4, -0.7, 0.15, -0.04, 0.01))
PLACES = [(5e5, 3e6), (1e6, 3e6), (1e6, 1.2e7), (2e6, 6e6), (4e6, 3e6), (4e6, 2.5e7)]


def test_without_runs_the_law_is_the_prior():
    assert corrected([]) == PRIOR


def test_golden_one_run_moves_the_law_to_it_and_leaves_the_rest_uncertain():
    """The demo of docs/stories.md: 1.28M parameters, 600 steps of 8,192 tokens, 3.62 where the prior says 10.6."""
    law = corrected([Observed(1.279e6, 4.915e6, 3.6231)])
    assert PRIOR.loss(1.279e6, 4.915e6) == pytest.approx(10.59, abs=0.02)
    assert law.loss(1.279e6, 4.915e6) == pytest.approx(3.6231, rel=0.01)
    width = [high / low for low, high in (law.interval(1.279e6, 4.915e6), law.interval(1.279e7, 4.915e7))]
    assert 1.05 < width[0] < width[1] < PRIOR.interval(1.279e7, 4.915e7)[1] / PRIOR.interval(1.279e7, 4.915e7)[0]


def test_runs_of_another_law_are_predicted_where_none_was():
    law = corrected(runs_of(TRUTH, PLACES))
    for size, tokens in [*PLACES, (8e6, 5e7), (3e5, 2e7)]:
        assert law.loss(size, tokens) == pytest.approx(TRUTH.loss(size, tokens), rel=0.03)
        low, high = law.interval(size, tokens)
        assert low < TRUTH.loss(size, tokens) < high


@given(first=st.integers(1, 5), place=st.tuples(SIZES, TOKENS))
def test_more_runs_never_make_a_prediction_less_certain(first, place):
    fewer, more = (corrected(runs_of(TRUTH, PLACES[:count])) for count in (first, 6))

    def width(law):
        low, high = law.interval(*place)
        return math.log(high / low)

    assert width(more) <= width(fewer) * 1.05  # the law is linear only nearly


def test_runs_that_contradict_one_another_make_it_less_certain():
    calm, scattered = (corrected(runs_of(TRUTH, PLACES, noise)) for noise in (NOISE / 2, 8 * NOISE))
    low, high = calm.interval(*PLACES[0])
    lower, higher = scattered.interval(*PLACES[0])
    assert higher / lower > high / low


def test_sampled_laws_spread_as_the_interval_says_and_are_the_same_each_time():
    losses = [law.loss(1e9, 2e10) for law in PRIOR.samples(400)]
    assert losses == [law.loss(1e9, 2e10) for law in PRIOR.samples(400)]
    low, high = PRIOR.interval(1e9, 2e10)
    assert 0.9 <= sum(low < loss < high for loss in losses) / 400 <= 0.99
