"""The tests of a session, as pytest's stash keeps them."""

import pytest

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""Every test that was collected, before `-m` has chosen."""
