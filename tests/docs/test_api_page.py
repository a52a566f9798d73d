"""The API page has every public name; its examples run, and those that take minutes can at least be typed."""

import ast
import doctest
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plimsoll

PAGE = (Path(__file__).resolve().parents[2] / "docs/api.md").read_text("utf-8")
NAMES = [name for name in plimsoll.__all__ if name != "__version__"]
NAMESPACE = {
    **{"plimsoll": plimsoll, "jax": jax, "jnp": jnp, "np": np, "optax": optax, "dataclass": dataclass},
    "__name__": __name__,
}
OWNERS = {"plimsoll": plimsoll, "run": plimsoll.Run, "tune": plimsoll.Tune, "plan": plimsoll.FunctionPlan}
"""Objects of the examples that are only typed, or their classes."""


def example_of(name):
    doc = inspect.getdoc(getattr(plimsoll, name)) or ""
    return doctest.DocTestParser().get_doctest(doc, dict(NAMESPACE), name, None, None)


def test_every_public_name_is_on_the_page():
    shown = re.findall(r"^### plimsoll\.(\w+)$", PAGE, re.MULTILINE)
    assert sorted(shown) == sorted(NAMES)
    assert "plimsoll.__version__" in PAGE


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_has_an_example_that_runs(name):
    test, printed = example_of(name), []
    assert test.examples, f"the docstring of plimsoll.{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    assert runner.run(test, out=printed.append).failed == 0, "".join(printed)


@pytest.mark.parametrize("name", NAMES)
def test_examples_call_what_is_there_with_arguments_that_it_takes(name):
    for example in example_of(name).examples:
        for call in (node for node in ast.walk(ast.parse(example.source)) if isinstance(node, ast.Call)):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id in OWNERS:
                target, method = getattr(OWNERS[owner.id], call.func.attr), owner.id != "plimsoll"
                if inspect.isclass(target) and issubclass(target, Exception):  # takes any message
                    continue
                given = [None] * (len(call.args) + method)
                inspect.signature(target).bind(*given, **{word.arg: None for word in call.keywords if word.arg})
