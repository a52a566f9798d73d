"""No input of a user's breaks a command: options of any form, and files of which some bytes are wrong, are read or
refused in words."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_files import write_control
from packed_files import write_packed
from plimsoll.api.planning import ask
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.recipes.registry import preset

RECIPES = ("stories", "control", "sudoku-4x4", "longcontext-nano", "recommend-debug")
OF_COMMANDS = ["memory", "chip", "mesh", "numerics", "micro-batch", "remat", "precision", "plan", "host-memory"]
ODD = ["0", "-1", "1e999", "nan", "10GiB", "-5MiB", "1e9G", "True", "None", "data=0,fsdp=-1", "９", "", " ", "x" * 5000]
WORDS = st.one_of(
    st.sampled_from([*ODD, "../../nowhere", "__import__('os').system('false')", "--help"]),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)


def ended(words):
    """Returns the exit code of a command in this process, and its errors."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(words)
        except SystemExit as problem:
            code = problem.code
    return code, errors.getvalue()


def require_done_or_refused(words):
    code, errors = ended(words)
    assert code in (0, 2), (words, errors)
    if code:
        assert "error: " in errors or "usage" in errors.lower() or "─" in errors, (words, errors)
        assert "Traceback" not in errors, (words, errors)


@st.composite
def option_words(draw):
    """A command with options of its recipe and of its own, and values of any form."""
    name = draw(st.sampled_from(RECIPES))
    fields = [*preset(name).options]
    words = ["plan", name]
    for _ in range(draw(st.integers(1, 4))):
        flag = draw(st.sampled_from([*fields, *OF_COMMANDS])).replace("_", "-")
        words.append(draw(st.sampled_from([f"--{flag}", f"--{flag}", f"--no-{flag}", f"-{flag[0]}"])))
        if draw(st.integers(0, 9)):
            words.append(draw(WORDS))
    return words


@given(option_words())
def test_options_of_any_form_are_taken_or_refused(words):
    """Planning compiles: what comes before it is what reads options."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ask, "ask", read_and_nothing_is_wrong)
        require_done_or_refused(words)


def read_and_nothing_is_wrong(*_, **__):
    raise PlimsollError("what was typed is fine")


def write_lines(folder):
    lines = [json.dumps({"text": f"abc def ghi {number} " * 10}) for number in range(20)]
    (folder / "lines.jsonl").write_text("\n".join(lines))
    return folder / "lines.jsonl"


def write_windows(folder):
    return write_control(folder / "windows.h5", rows=60, chunk=16)


def write_tokens(folder):
    ids = np.random.default_rng(0).integers(0, 257, 600)
    return write_packed(folder / "packed", ids, validation=ids[:100])


@st.composite
def damaged(draw, content):
    """Up to four times: a bit flipped, cut, a piece doubled, taken out, or other bytes put in."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if not found:
            break
        at, length = draw(st.integers(0, len(found) - 1)), draw(st.integers(1, 200))
        how = draw(st.sampled_from(["flip", "cut", "double", "remove", "replace"]))
        if how == "flip":
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del found[at:]
        elif how == "double":
            found[at:at] = found[at : at + length]
        elif how == "remove":
            del found[at : at + length]
        else:
            found[at : at + 8] = draw(st.one_of(st.binary(min_size=1, max_size=16), st.just(b"\xff" * 8)))
    return bytes(found)


@pytest.mark.parametrize("write", [write_lines, write_windows, write_tokens])
@settings(max_examples=20)  # each reads a file, also in `make test-all`
@given(data=st.data())
def test_a_damaged_file_is_inspected_or_refused(write, data):
    with tempfile.TemporaryDirectory() as folder:
        place = write(Path(folder))
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
        file = data.draw(st.sampled_from(files))
        file.write_bytes(data.draw(damaged(file.read_bytes())))
        require_done_or_refused(["inspect", str(place), "--json"])
