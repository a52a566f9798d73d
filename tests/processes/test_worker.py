"""What a process is asked for by name is there: nothing else looks a name up only when a command needs it."""

import importlib

import pytest

from plimsoll import worker


@pytest.mark.parametrize("verb", worker.ANSWERS)
def test_every_verb_has_its_function(verb):
    module, name = worker.ANSWERS[verb]
    assert callable(getattr(importlib.import_module(module), name))
