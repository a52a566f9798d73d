"""What people type and what people read: bytes, counts, times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.errors import RecipeError
from plimsoll.units import (
    as_read,
    format_budget,
    format_bytes,
    format_count,
    format_seconds,
    parse_budget,
    parse_bytes,
    parse_count,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 2**30),
        ("2GB", 2 * 10**9),
        ("2G", 2 * 2**30),
        ("512M", 512 * 2**20),
        ("1.5 kB", 1500),
        (1024, 1024),
        ("1_000", 1000),
        ("0.5TiB", 2**39),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("400", r"--memory 400 is 400 B, and no process is that small: 400MiB\?"),
        (400, r'memory=400 is 400 B, and no process is that small: memory="400MiB"\?'),
        (1.5, r'memory=1\.5 is 1 B, and no process is that small: memory="1\.5GiB"\?'),
        ("8", r"--memory 8 is 8 B, and no process is that small: 8GiB\?"),
        ("1.5 kB", r"--memory 1\.5 kB is 1\.5 KiB, and no process is that small: 1\.5GiB\?"),
        ("0G", "--memory 0G is 0 B, and no process is that small: give MiB or GiB, like 768MiB"),
        ("0.5MiB", r"--memory 0\.5MiB is 512\.0 KiB, and no process is that small: give MiB or GiB, like 768MiB"),
    ],
)
def test_a_budget_that_is_too_small_for_any_process_is_refused(text, refusal):
    with pytest.raises(RecipeError, match=f"^{refusal}$"):
        parse_budget(text)


def test_a_budget_may_be_in_any_unit_and_a_difference_negative():
    assert format_bytes(-3 * 2**20) == "-3.0 MiB"
    assert parse_budget("400MiB") == parse_budget(400 * 2**20) == parse_budget("400M") == parse_budget("409600k")


@pytest.mark.parametrize(
    ("text", "read"),
    [("2G", "2G is read as 2.0 GiB"), ("2gb", "2gb is read as 1.9 GiB"), (" 768 MB ", "768 MB is read as 732.4 MiB")],
)
def test_a_unit_that_not_everyone_reads_so_is_said(text, read):
    assert as_read(text) == read
    assert [as_read(plain) for plain in ("2GiB", "768mib", "2147483648", 2**31)] == [None] * 4


@pytest.mark.parametrize(
    ("text", "count"), [("124M", 124 * 10**6), ("10k", 10**4), ("10K", 10**4), ("1.3b", 13 * 10**8), ("7", 7)]
)
def test_counts_are_decimal(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["1.5", "0.2505k", "1.5e0"])
def test_a_part_of_one_is_not_counted(text):
    with pytest.raises(RecipeError, match="no whole number"):
        parse_count(text)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5min", 90), ("2h", 7200)])
def test_times(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_seconds])
@pytest.mark.parametrize("text", ["", "-1", "1.2.3", "5 parsecs", "nan", "1e", "GiB"])
def test_what_cannot_be_read_is_refused_with_the_units_there_are(parse, text):
    with pytest.raises(RecipeError, match=r"cannot be read: write a number and one of .*, like ") as refused:
        parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_seconds])
@pytest.mark.parametrize("text", ["1e400", "1" + "0" * 400])
def test_what_is_beyond_all_numbers_is_refused(parse, text):
    with pytest.raises(RecipeError, match=f"'{text}' is too large to be counted: write one like "):
        parse(text)


def test_a_unit_may_not_lead_beyond_all_numbers_either():
    with pytest.raises(RecipeError, match="the size '1e308TiB' is too large"):
        parse_bytes("1e308TiB")


@given(st.integers(0, 2**50))
def test_a_printed_size_reads_back_to_within_its_digits(size):
    text = format_bytes(size)
    assert parse_bytes(text) == pytest.approx(size, rel=0.051, abs=1)
    assert len(text) <= len("1023.9 MiB")


@given(st.integers(0, 999 * 10**9))
def test_a_printed_count_reads_back_to_within_its_digits(count):
    text = format_count(count)
    assert parse_count(text) == pytest.approx(count, rel=0.0051)
    assert len(text) <= len("12.3M")


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999"), (999_499, "999k"), (999_999, "1M"), (999_999_999, "1B"), (1_300_000, "1.3M")]
)
def test_counts_at_the_border_of_a_unit(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0000042, "0.0042 ms"),
        (0.000424, "0.42 ms"),
        (0.0049, "4.9 ms"),
        (0.0123, "12 ms"),
        (89, "89.0 s"),
        (90, "1.5 min"),
        (5400, "1.5 h"),
    ],
)
def test_seconds_are_read_at_a_glance(seconds, text):
    assert format_seconds(seconds) == text


@given(st.floats(1e-6, 0.9))
def test_a_short_time_is_printed_to_two_digits(seconds):
    number, unit = format_seconds(seconds).split()
    assert unit == "ms"
    assert float(number) == pytest.approx(1000 * seconds, rel=0.0501)


@given(st.integers(1, 200 * 2**30))
def test_a_budget_is_rounded_up_to_what_memory_takes(size):
    unit = 2**20 if size < 64 * 2**30 else 2**30
    assert size <= parse_bytes(format_budget(size)) < size + unit
