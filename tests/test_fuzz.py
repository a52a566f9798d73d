"""`benchmarks/fuzz.py`, a few inputs of each kind; and that it notices what it is there to notice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
KINDS = ["text", "hdf5", "packed", "puzzles", "tables", "interactions", "tokenizer", "run", "plan", "options"]


def python(*words, **more):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(BENCHMARKS)])}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment | more, timeout=900, check=False
    )


@pytest.mark.slow_except("packed", "tables")
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_input_meets_anything_but_success_or_a_refusal(tmp_path, kind):
    out = tmp_path / "fuzz.jsonl"
    words = ["--alone", "--kinds", kind, "--count", "25", "--seed", "3", "--out", str(out)]
    ended = python(str(BENCHMARKS / "fuzz.py"), *words, HF_HUB_OFFLINE="1", JAX_PLATFORMS="cpu")
    assert ended.returncode == 0, ended.stderr
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["count"] == 25
    assert set(row["ends"]) <= {"done", "refused"}, row


def test_the_watch_notices_what_is_forbidden(tmp_path):
    """In a process of its own: an audit hook stays."""
    program = f"""
import io, os, pickle, subprocess
from pathlib import Path
from fuzz_mutate import MARK
from fuzz_watch import Watch
inside = Path({str(tmp_path)!r}) / "in"; inside.mkdir()
watch = Watch(inside)
def seen(act):
    with watch.watching() as found:
        try: act()
        except Exception: pass
    return len(found)
assert seen(lambda: (inside / "a").write_text("a")) == 0
assert seen(lambda: (inside / "a").read_text()) == 0
assert seen(lambda: (inside.parent / "b").write_text("b")) == 1
assert seen(lambda: os.remove(inside.parent / "b")) == 1
assert seen(lambda: pickle.loads(b"cos\\nsystem\\n(S'true'\\ntR.")) >= 1
assert seen(lambda: os.system("true")) == 1
assert seen(lambda: subprocess.run(["true"])) >= 1
assert seen(lambda: eval(MARK)) == 1
assert seen(lambda: exec("import " + MARK)) >= 1
assert seen(lambda: eval(repr("data with " + MARK))) == 0
"""
    ended = python("-c", program)
    assert ended.returncode == 0, ended.stderr
