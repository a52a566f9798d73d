"""How many examples a property is tried with, where it does not take the number of the profile."""

from hypothesis import settings


def examples(count: int, *, usual: int = 20) -> int:
    """Returns `count`, at most `usual`, in `make test`, and `count` in `make test-all`."""
    thorough = settings.default.max_examples > settings.get_profile("usual").max_examples
    return count if thorough else min(count, usual)
