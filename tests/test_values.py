"""Dataclasses survive JSON; a value of another type is refused with its path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.values import from_json, to_json


@dataclass(frozen=True)
class Part:
    name: str
    bytes: int | None = None


@dataclass(frozen=True)
class Whole:
    seconds: float
    kind: Literal["a", 1]
    first: Part
    parts: tuple[Part, ...] = ()
    span: tuple[float, int] | None = None
    sizes: Mapping[str, Part] = field(default_factory=dict)
    free: Any = None
    is_last: bool = False


parts = st.builds(Part, st.text(), st.none() | st.integers())
wholes = st.builds(
    Whole,
    seconds=st.floats(allow_nan=False),
    kind=st.sampled_from(["a", 1]),
    first=parts,
    parts=st.lists(parts, max_size=3).map(tuple),
    span=st.none() | st.tuples(st.floats(allow_nan=False), st.integers()),
    sizes=st.dictionaries(st.text(), parts, max_size=3),
    free=st.none() | st.text() | st.lists(st.integers()),
    is_last=st.booleans(),
)


@given(wholes)
def test_a_value_survives_json(whole):
    assert from_json(Whole, json.loads(json.dumps(to_json(whole))), "file") == whole


WHOLE = {"seconds": 1, "kind": "a", "first": {"name": "x"}}


def test_fields_with_a_default_may_be_left_out_and_other_names_are_passed_over():
    assert from_json(Whole, WHOLE | {"derived": 3}, "file") == Whole(1.0, "a", Part("x"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": "1"}, "file.seconds is '1'"),
        ({"seconds": True}, "file.seconds is True"),
        ({"kind": True}, "file.kind is True"),  # True is no 1
        ({"kind": "b"}, "file.kind is 'b'"),
        ({"first": None}, "file.first is None"),
        ({"first": {}}, "file.first.name is missing"),
        ({"parts": [{"name": "x"}, {"name": "y", "bytes": 1.5}]}, r"file.parts\[1\].bytes is 1.5"),
        ({"parts": {}}, "file.parts is {}"),
        ({"span": [1.0]}, "file.span has 1 values instead of 2"),
        ({"sizes": {"a": {"name": 2}}}, "file.sizes.a.name is 2"),
        ({"is_last": 1}, "file.is_last is 1"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_path(changes, words):
    with pytest.raises(TypeError, match=f"^{words}$"):
        from_json(Whole, WHOLE | changes, "file")


def test_what_is_no_object_is_refused():
    with pytest.raises(TypeError, match=r"^file is \[\]$"):
        from_json(Whole, [], "file")
