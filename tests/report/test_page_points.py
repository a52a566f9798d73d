"""Thinning keeps every spike, and what is not finite breaks the line."""

import math

from hypothesis import given
from hypothesis import strategies as st

from plimsoll.report.page.axes import axis, spans_decades
from plimsoll.report.page.chart import STRETCHES, thinned

VALUES = st.floats(width=32)


def all_points(found):
    return [point for piece in found.pieces for point in piece]


def test_one_bad_step_among_100_000_is_seen():
    values = [1.0] * 100_000
    values[71_234] = 50.0
    values[12_345] = -50.0
    found = all_points(thinned(range(100_000), values))
    assert (71_234, 50.0) in found
    assert (12_345, -50.0) in found
    assert len(found) <= 2 * STRETCHES + 2


@given(st.lists(VALUES, min_size=1, max_size=2000), st.integers(1, 50))
def test_ends_and_extremes_are_kept_and_nothing_is_made_up(values, stretches):
    finite = [(at, value) for at, value in enumerate(values) if math.isfinite(value)]
    found = thinned(range(len(values)), values, stretches=stretches)
    points = all_points(found)
    assert set(points) <= set(finite)
    assert points == sorted(points, key=lambda point: point[0])
    assert found.not_finite_count == len(values) - len(finite)
    if finite:
        assert {min(y for _, y in points), max(y for _, y in points)} == {
            min(y for _, y in finite),
            max(y for _, y in finite),
        }
        assert len(points) <= 4 * stretches + 2


def test_few_points_are_all_drawn():
    assert all_points(thinned([1, 2, 3], [3.0, 1.0, 2.0])) == [(1, 3.0), (2, 1.0), (3, 2.0)]


def test_nan_breaks_the_line_and_is_counted():
    found = thinned([1, 2, 3, 4], [1.0, math.nan, math.inf, 2.0])
    assert found.pieces == (((1, 1.0),), ((4, 2.0),))
    assert found.not_finite == (2, 3)
    assert found.not_finite_count == 2
    assert thinned(range(1000), [0.0] * 703 + [math.nan] * 297, stretches=10).not_finite[0] == 703


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.booleans(), st.booleans()
)
def test_an_axis_places_all_values_between_its_ends(values, from_zero, may_be_logarithmic):
    made = axis("x", values, from_zero=from_zero, logarithmic=may_be_logarithmic and spans_decades(values))
    for value in values:
        assert -1e-6 <= made.place(value) <= 1 + 1e-6
    ticks = made.ticks()
    assert 1 <= len(ticks) <= 24
    assert all(words for _, words in ticks)


def test_ticks_are_round_numbers():
    assert [words for _, words in axis("MiB", [0, 1000], from_zero=True).ticks()] == [
        "0", "200", "400", "600", "800", "1,000",
    ]  # fmt: skip
    assert [words for _, words in axis("rate", [0, 3e-4], from_zero=True).ticks()][-1] == "0.0003"
    assert [words for _, words in axis("x", [1, 5000], logarithmic=True).ticks()] == ["1", "10", "100", "1,000"]


def test_a_logarithmic_axis_needs_values_above_zero():
    assert not spans_decades([0.0, 1e6])
    assert not spans_decades([1.0, 10.0])
    assert spans_decades([0.01, 1.0])
