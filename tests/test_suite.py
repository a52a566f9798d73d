"""What the tests promise of themselves: each case that has a mark is there, and the user's folders stay as they are."""

import pytest

from collected import COLLECTED
from plimsoll.processes.environment import cache_folder


def test_cases_that_are_not_slow_are_there(request):
    """A name in `slow_except` that no case has any more would leave nothing of a test in `make test`."""
    config = request.config
    if config.option.keyword or any("::" in word for word in config.args):
        pytest.skip("only some cases are collected")
    items = config.stash[COLLECTED]
    names = {item.nodeid for item in items}
    for item in items:
        marker = item.get_closest_marker("slow_except")
        if marker is not None:
            function = item.nodeid.partition("[")[0]
            assert {f"{function}[{case}]" for case in marker.args} <= names


def test_commands_write_into_a_cache_of_the_test_runs_own(request):
    """`PLIMSOLL_CACHE` is set for every process that a test starts: the user's folder stays as it is."""
    assert cache_folder() == request.config.cache.mkdir("plimsoll")
