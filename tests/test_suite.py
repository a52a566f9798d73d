"""What the tests promise of themselves: they are fast enough to be run, and leave nothing in the user's folders."""

import pytest
from hypothesis import settings

import durations
from plimsoll.processes.environment import cache_folder

UNKNOWN_SHARE, UNKNOWN_COUNT = 0.05, 10
"""Tests that may be in no record yet: this share of those collected, or this many."""


@pytest.fixture
def record(request):
    if request.config.getoption("--record-durations"):
        pytest.skip("the record is being written")
    return durations.read()


@pytest.fixture
def collected(request):
    """Every test that was collected, by name, and whether it is left to `make test-all`."""
    items = request.config.stash[durations.COLLECTED]
    return {item.nodeid: item.get_closest_marker("slow") is not None for item in items}


def test_no_test_of_make_test_takes_longer_than_it_may(collected, record):
    long = {name for name, seconds in record["tests"].items() if seconds > durations.LIMIT_OF_A_TEST}
    dear = {name: record["tests"][name] for name in long if not collected.get(name, True)}
    assert not dear, "in CPU seconds: make these cheaper, or mark them slow, and then `make durations`"


def test_all_of_make_test_together_take_no_longer_than_they_may(record):
    assert record["total"] <= durations.LIMIT_OF_ALL, "CPU seconds of the last `make durations`"


def test_nearly_every_test_is_recorded(collected, record):
    unknown = {name for name, slow in collected.items() if not slow} - record["tests"].keys() - set(record["quickest"])
    assert len(unknown) <= max(UNKNOWN_COUNT, UNKNOWN_SHARE * len(collected)), "`make durations` records them"


def test_cases_that_are_not_slow_are_there(request, collected, record):
    """A name in `slow_except` that no case has any more would leave nothing of a test in `make test`."""
    if len(collected) < len(record["tests"]) + len(record["quickest"]):
        pytest.skip("only some tests are collected")
    for item in request.config.stash[durations.COLLECTED]:
        marker = item.get_closest_marker("slow_except")
        if marker is not None:
            assert {f"{item.nodeid.partition('[')[0]}[{case}]" for case in marker.args} <= collected.keys()


def test_commands_write_into_a_cache_of_the_test_runs_own(tmp_path_factory):
    """`PLIMSOLL_CACHE` is set for every process that a test starts: the user's folder stays as it is."""
    own = tmp_path_factory.getbasetemp()
    assert cache_folder().parent in (own, own.parent)


def test_few_examples_are_tried_in_make_test_and_more_in_test_all():
    assert settings.get_profile("usual").max_examples == 20
    assert settings.get_profile("thorough").max_examples == 100
