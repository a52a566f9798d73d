"""The exit code belongs to the refusal's class, and the command line prints one paragraph of it."""

import json

import pytest

from plimsoll import errors
from plimsoll.errors import (
    BudgetError,
    CheckpointError,
    DeviceLostError,
    PlimsollError,
    RecipeError,
    StoppedError,
    raise_refusal,
)


def every_error():
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PlimsollError)]


def test_refusals_exit_with_2_and_a_run_that_stopped_itself_with_3():
    assert {kind.exit_code for kind in every_error() if not issubclass(kind, StoppedError)} == {2}
    assert {StoppedError.exit_code, DeviceLostError.exit_code} == {3}
    assert len(every_error()) >= 6


@pytest.mark.parametrize("kind", [PlimsollError, RecipeError, CheckpointError, StoppedError])
def test_a_refusal_of_another_process_has_its_class_here(kind):
    with pytest.raises(kind, match="it says: no") as raised:
        raise_refusal(json.loads(json.dumps(kind("no").reply())), prefix="it says: ")
    assert type(raised.value) is kind
    assert raised.value.exit_code == kind.exit_code
    with pytest.raises(PlimsollError, match="no") as of_more:
        raise_refusal(BudgetError("no", budget_bytes=1, floor_bytes=2).reply())
    assert type(of_more.value) is PlimsollError


@pytest.mark.parametrize(
    "problem",
    [
        PlimsollError("the paragraph"),
        errors.as_paragraph(KeyboardInterrupt("the paragraph")),
    ],
)
def test_a_notebook_prints_the_paragraph_and_no_traceback(problem):
    """IPython asks an exception for its lines (`_render_traceback_`) before it draws a traceback of its own."""
    assert problem._render_traceback_() == [f"{type(problem).__name__}: {problem}"]
