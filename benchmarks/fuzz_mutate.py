"""Adversarial forms of a sound input, drawn by hypothesis: bytes that are flipped, cut, doubled or replaced, and JSON
whose values are of another kind, too large, missing, or names of code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

MARK = "plimsoll_fuzz_mark"
"""Stands in every hostile string: whatever evaluates, imports or opens it is caught by it."""
HOSTILE = (
    f"__import__('os').system('{MARK}')",
    f"{{{{{MARK}}}}}",
    f"!!python/object/apply:os.system ['{MARK}']",
    f"../../../../{MARK}",
    f"/{MARK}",
    f"$({MARK})",
    f"%({MARK})s",
    f"<script>{MARK}</script>",
    f"cos\nsystem\n(S'{MARK}'\ntR.",
    f"{MARK}\0",
    "\ud800" + MARK,
    "",
    " ",
    "NaN",
    "1e999",
    "-0",
    "９",
    "x" * 5000,
)
NUMBERS = (0, -1, 1, 2, 2**31 - 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320)
JSON_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, [], {}, [[]], [None], {"": None}, float("nan"), float("inf")]),
    st.sampled_from(NUMBERS),
    st.sampled_from(HOSTILE),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4), max_leaves=8
    ),
    st.just("DEEP"),
)
WORDS = st.one_of(
    st.sampled_from(HOSTILE[:-1]),
    st.sampled_from([str(number) for number in NUMBERS]),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["True", "None", "1k", "10GiB", "-5MiB", "1e9G", "data=2", "data=0,fsdp=-1", "float32", "block", "--help"]
    ),
)


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Up to four times: a bit flipped, cut, a piece doubled, taken out, or other bytes put in."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if not found:
            break
        at = draw(st.integers(0, len(found) - 1))
        how = draw(st.integers(0, 5))
        if how == 0:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif how == 1:
            del found[at:]
        elif how == 2:
            found[at:at] = found[at : at + draw(st.integers(1, 200))]
        elif how == 3:
            del found[at : at + draw(st.integers(1, 200))]
        elif how == 4:
            found[at : at + 8] = draw(st.binary(min_size=1, max_size=16))
        else:
            found[at : at + 8] = draw(
                st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, *map(_bytes, HOSTILE[:8])])
            )
    return bytes(found)


@st.composite
def changed_json(draw: Any, content: bytes) -> bytes:
    """Up to three values at any depth replaced, taken out, or put in under another name."""
    value = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        holder = value
        for key in way:
            holder = holder[key]
        how = draw(st.integers(0, 9))
        if how == 0:
            del holder[last]
        elif how == 1 and isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = draw(JSON_VALUES)
        else:
            holder[last] = draw(JSON_VALUES)
    if draw(st.integers(0, 19)) == 0:
        value = draw(JSON_VALUES)
    return json.dumps(value).replace('"DEEP"', "[" * 3000 + "]" * 3000).encode()


def changed(content: bytes) -> st.SearchStrategy[bytes]:
    """Changes values of JSON mostly, and bytes of all else."""
    try:
        json.loads(content)
    except ValueError:
        return st.one_of(damaged(content), damaged(content), st.binary(max_size=64))
    return st.one_of(
        changed_json(content), changed_json(content), changed_json(content), damaged(content), st.binary(max_size=64)
    )


def _places(value: Any, way: tuple[Any, ...] = ()) -> Any:
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items[:60]:
        yield (*way, key)
        yield from _places(inner, (*way, key))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
