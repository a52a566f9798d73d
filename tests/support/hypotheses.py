"""How many examples a property is tried with, where it does not take the number of the profile."""

from hypothesis import settings


def examples(count: int) -> int:
    """Returns `count`, at most 20, in `make test`, and twice `count` in `make test-all`."""
    thorough = settings.default.max_examples > settings.get_profile("usual").max_examples
    return 2 * count if thorough else min(count, settings.get_profile("usual").max_examples)
