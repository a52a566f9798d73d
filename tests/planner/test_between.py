"""A step with a micro-batch that nobody looked at: temporaries on a line, by hand."""

from dataclasses import replace

import pytest

from planner_examples import analysis
from plimsoll.planner.between import interpolated


def of(temp, moved=0.0, dots=0.0, hosted=0):
    return replace(analysis(temp), moved_bytes=moved, dots=dots, host_temp_bytes=hosted)


def test_between_and_beyond_two_compiled_micro_batches_by_hand():
    """Temporaries on a line; of the whole step, what is moved and started falls with 1 / micro-batch: 100 + 80 / n
    bytes, 10 + 40 / n dots. A block's inputs are on the host, 30 bytes for each example."""
    known = {2: of(1_000, 140.0, 30.0, 60), 8: of(2_200, 110.0, 15.0, 240)}
    found = {micro: interpolated(micro, known) for micro in (1, 2, 4, 8, 16)}
    assert {micro: one.temp_bytes for micro, one in found.items()} == {1: 800, 2: 1_000, 4: 1_400, 8: 2_200, 16: 3_800}
    for micro, one in found.items():
        assert one.moved_bytes == pytest.approx(100 + 80 / micro)
        assert one.dots == pytest.approx(10 + 40 / micro)
        assert one.host_temp_bytes == 30 * micro


def test_below_the_smaller_compiled_one_there_is_never_less_than_in_proportion():
    """A line through 1,000 at 4 and 5,000 at 8 would be below nothing at 1."""
    steep = {4: of(1_000), 8: of(5_000)}
    assert [interpolated(micro, steep).temp_bytes for micro in (1, 2, 4, 6)] == [250, 500, 1_000, 3_000]
    falling = {4: of(1_000), 8: of(600)}
    assert [interpolated(micro, falling).temp_bytes for micro in (4, 6, 8, 16)] == [1_000, 1_000, 1_000, 1_000]


def test_by_one_compile_alone_what_lies_on_the_host_grows_in_proportion():
    known = {4: of(1_000, hosted=120)}
    assert {micro: interpolated(micro, known).host_temp_bytes for micro in (1, 4, 8)} == {1: 30, 4: 120, 8: 240}
    assert interpolated(8, known).temp_bytes == 2_000
