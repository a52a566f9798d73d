"""The cache's limit: least recently used goes first, what is in use stays, and processes at once do not harm it."""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emptying import together
from plimsoll.errors import PlimsollError
from plimsoll.processes import cache
from plimsoll.processes.environment import for_processes
from plimsoll.units import GIB, MIB

AGES = st.integers(0, 10**6)
"""Seconds since the last use, far enough in the past that nothing counts as in use."""


def put(folder, part, name, *, size, age):
    """Writes an entry that was last used so many seconds before a day ago."""
    place = folder / part
    path = place / name / "tokens.bin" if part == "tokens" else place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    used = time.time() - 24 * 3600 - age
    os.utime(path, (used, used))
    os.utime(place / name, (used, used))
    return place / name


def test_the_limit_is_5_gib_or_what_the_user_says(monkeypatch):
    monkeypatch.delenv(cache.LIMIT, raising=False)
    assert cache.limit_bytes() == 5 * GIB
    monkeypatch.setenv(cache.LIMIT, "700MiB")
    assert cache.limit_bytes() == 700 * MIB
    monkeypatch.setenv(cache.LIMIT, "0")
    assert cache.limit_bytes() == 0
    monkeypatch.setenv(cache.LIMIT, "400")
    with pytest.raises(PlimsollError, match=r"and 400 is 400 B, and no cache is that small: 400MiB\?$"):
        cache.limit_bytes()
    monkeypatch.setenv(cache.LIMIT, "much")
    with pytest.raises(PlimsollError, match=r"PLIMSOLL_CACHE_LIMIT is the size that the cache may have, and .* 'much'"):
        cache.limit_bytes()


@given(
    st.lists(st.tuples(st.sampled_from(["compiled", "tokens", "answers"]), st.integers(0, 50), AGES)),
    st.integers(0, 400),
)
def test_the_least_recently_used_go_first_and_no_more_than_needed(tmp_path_factory, rows, limit):
    folder = tmp_path_factory.mktemp("cache")
    for number, (part, size, age) in enumerate(rows):
        put(folder, part, str(number), size=size, age=age)
    before = cache.entries(folder)
    assert sorted((entry.part, entry.size_bytes) for entry in before) == sorted((part, size) for part, size, _ in rows)
    removed = cache.prune(folder, limit)
    left = cache.entries(folder)
    gone = [entry for entry in before if entry not in left]
    assert sum(entry.size_bytes for entry in gone) == removed
    assert sum(entry.size_bytes for entry in left) <= limit
    if gone:
        last = max(gone, key=lambda entry: entry.used_ns)
        assert all(last.used_ns <= entry.used_ns for entry in left)
        assert sum(entry.size_bytes for entry in [*left, last]) > limit


def test_of_the_answers_only_those_that_a_step_is_ready_go_with_it(tmp_path):
    """So what training loads is compiled again before it begins, where it is missing (engine/trial.py)."""
    step = put(tmp_path, "compiled", "jit_f-1-cache", size=100, age=500)
    answers = [put(tmp_path, "answers", name, size=10, age=400) for name in ("analyse-1.json", "prepare-1.json")]
    assert cache.prune(tmp_path, 50) == 100
    assert [step.exists(), *(answer.exists() for answer in answers)] == [False, True, False]


def test_what_a_process_may_be_about_to_use_stays_and_is_looked_at_again(tmp_path):
    old = put(tmp_path, "answers", "old.json", size=10, age=0)
    new = put(tmp_path, "compiled", "jit_f-1-cache", size=100, age=0)
    os.utime(new)
    assert cache.prune(tmp_path, 50) == 10
    assert [old.exists(), new.exists()] == [False, True]
    used = time.time() - cache.IN_USE_SECONDS - 5
    os.utime(new, (used, used))
    assert cache.prune(tmp_path, 50) == 100


def test_reading_a_compiled_step_is_using_it(tmp_path):
    """JAX sets no time: the system does."""
    step = put(tmp_path, "compiled", "jit_f-1-cache", size=10, age=500)
    other = put(tmp_path, "compiled", "jit_g-1-cache", size=10, age=400)
    written = step.stat().st_mtime
    os.utime(step, (written + 300, written))
    assert cache.prune(tmp_path, 10) == 10
    assert [step.exists(), other.exists()] == [True, False]


def test_what_cannot_be_made_again_stays(tmp_path):
    put(tmp_path, "compiled", "jit_f-1-cache", size=10, age=0)
    run = put(tmp_path, "runs", "a-run", size=10, age=0)
    (tmp_path / "compiled/.lockfile").write_bytes(bytes(8))
    removed, left = cache.empty(tmp_path)
    assert [entry.path.name for entry in removed] == ["jit_f-1-cache"]
    assert left == []
    assert os.listdir(tmp_path / "compiled") == [".lockfile"]
    assert run.exists()


def test_a_text_that_was_half_removed_goes_too(tmp_path):
    text = put(tmp_path, "tokens", "text", size=10, age=0)
    (tmp_path / "tokens/.removed-other-77").mkdir()
    (tmp_path / "tokens/.removed-other-77/tokens.bin").write_bytes(bytes(10))
    os.utime(tmp_path / "tokens/.removed-other-77", (1, 1))
    assert cache.prune(tmp_path, 10) == 10
    assert list((tmp_path / "tokens").iterdir()) == [text]
    with open(text / "tokens.bin", "rb") as file:
        assert cache.prune(tmp_path, 0) == 10
        assert file.read() == bytes(10)  # who had opened it reads on
    assert not list((tmp_path / "tokens").iterdir())


COMPILER = """
import json, sys
for line in sys.stdin:
    question = json.loads(line)
    seconds = [question["plans"][0]["micro_batch"]] * 2000
    print(json.dumps({"answer": seconds}), flush=True)
"""


def test_planners_at_once_share_answers_that_another_process_removes(tmp_path):
    """Real processes: 300 questions each, 20 different ones, every answer of several KB."""
    program = """
    import json, os, sys
    from pathlib import Path
    from plimsoll.planner.child import Child, CompileProcess, Pool
    from plimsoll.planner.types import Subject
    from plimsoll.types import StepOptions
    from planner_examples import plan

    subject = Subject(recipe={}, steps=1, step_options=StepOptions())
    folder, compiler = Path(os.environ["PLIMSOLL_CACHE"]), json.loads(os.environ["ARGUMENTS"])["compiler"]

    class Script(CompileProcess):
        command = [sys.executable, "-c", compiler]

    with Pool([Child(Script(subject, os.environ), answers=folder / "answers")]) as child:
        for number in range(300):
            micro = number * 7 % 20 + 1
            assert child.measure([plan(micro_batch=micro)]) == [micro] * 2000
    """
    emptied, _ = together(tmp_path, program, compiler=COMPILER)
    assert emptied > 0
    for path in (tmp_path / "answers").glob("*.json"):
        assert len(json.loads(path.read_text())["answer"]) == 2000


@pytest.mark.slow
def test_processes_at_once_share_compiled_steps_that_another_one_removes(tmp_path):
    """What is left is whole: a third process loads or compiles all of it, and JAX warns of nothing."""
    program = """
    import warnings
    from plimsoll.processes.environment import hide_plugins

    hide_plugins()
    import jax
    import jax.numpy as jnp

    numbers = jnp.arange(64.0)
    for number in range(12):
        step = jax.jit(lambda x, number=number: (jnp.sin(x * number) @ jnp.cos(x + number)).sum())
        assert abs(float(step(numbers)) - float((jnp.sin(numbers * number) @ jnp.cos(numbers + number)).sum())) < 1e-3
    """
    emptied, _ = together(tmp_path, program)
    assert emptied > 0
    environment = for_processes("cpu") | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"), "PYTHONWARNINGS": "error"}
    third = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert (third.returncode, third.stderr) == (0, "")
