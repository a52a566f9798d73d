"""The compile child, as a real process: it answers, fails, crashes, is killed, hangs, or says nonsense."""

import contextlib
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from planner_examples import STATIC, plan
from plimsoll.planner import child
from plimsoll.planner.child import Child, CompileProcess, Pool
from plimsoll.planner.chips import chip
from plimsoll.planner.types import Card, DoesNotCompile, Subject
from plimsoll.types import StepOptions
from plimsoll.units import GIB

SUBJECT = Subject(recipe={"kind": "a"}, steps=10, step_options=StepOptions())
BUFFER = {"bytes": 7, "shape": "int8[7]", "what": "sin", "place": "recipe.py:3"}
ANALYSIS = {
    "argument_bytes": 1, "output_bytes": 1, "alias_bytes": 1, "temp_bytes": 7, "flops": 2.0, "largest": [BUFFER]
}  # fmt: skip

RATES = {"flops": {"float32": 1.0}, "copy_bytes": 1.0, "first_touch_bytes": 1.0, "loop_seconds": 0.0}

PROGRAM = f"""
import dataclasses, json, os, signal, sys, time
started = os.environ["STARTED"]
with open(started, "a") as file:
    file.write(str(os.getpid()) + "\\n")
for line in sys.stdin:
    question = json.loads(line)
    verb, plans = question["verb"], question["plans"]
    micro = plans[0]["micro_batch"] if plans else None
    if verb == "static" and os.path.exists(started + ".dies"):
        os.remove(started + ".dies")
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "rates":
        reply = {{"answer": {RATES!r} | {{"source": os.environ["CHIP"]}}}}
    elif verb == "imports":
        reply = {{"answer": 104_000_000}}
    elif verb == "static":
        reply = {{"answer": {dict(vars(STATIC))!r}}}
    elif verb == "measure" and any(plan["micro_batch"] == 66 for plan in plans):
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "measure":
        reply = {{"answer": [0.25] * len(plans)}}
    elif micro == 13:
        reply = {{"failed": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."}}
    elif micro == 66:
        os.kill(os.getpid(), signal.SIGKILL)
    elif micro == 67:
        print("warming up", "\\n\\nfatal: the tensor is cursed", file=sys.stderr)
        sys.exit(41)
    elif micro == 68:
        print("this is no JSON", flush=True)
        continue
    elif micro == 69:
        print('{{"neither": 1}}', flush=True)
        continue
    elif micro == 70:
        print('{{"answer": ', end="", flush=True)
        time.sleep(600)
    elif micro == 71:
        time.sleep(600)
    else:
        if micro in (100, 101):
            open(f"{{started}}.{{micro}}", "w").close()
            while not os.path.exists(started + ".go"):
                time.sleep(0.005)
        reply = {{"answer": {ANALYSIS!r}}}
    print(json.dumps(reply), flush=True)
"""


class Program(CompileProcess):
    """A process that runs PROGRAM."""

    command = (sys.executable, "-c", PROGRAM)


@pytest.fixture
def child_of(tmp_path):
    """Makes children, and ends them."""
    with contextlib.ExitStack() as made:

        def make(subject=SUBJECT, **how):
            name = "cpu" if subject.chip is None else subject.chip.name
            environment = os.environ | {"STARTED": str(tmp_path / "started"), "CHIP": name}
            one = Child(Program(subject, environment), answers=tmp_path / "answers", **how)
            made.callback(one.stop)
            return one

        yield make


def started(tmp_path):
    path = tmp_path / "started"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def analyse(compiler, micro):
    return compiler.analyse(plan(micro_batch=micro, accumulation=1))


def test_a_child_answers_again_and_again_in_one_process_until_it_is_stopped(child_of, tmp_path):
    compiler = child_of()
    assert compiler.static() == STATIC
    assert analyse(compiler, 1).temp_bytes == 7
    assert compiler.measure([plan(), plan()]) == [0.25, 0.25]
    assert len(started(tmp_path)) == 1
    assert compiler.compiles == 1
    compiler.stop()
    assert ended(tmp_path)


def test_plans_that_kill_the_child_while_they_are_timed_are_not_timed_again_for_it(child_of, tmp_path):
    """Whose fault it was is for the search to find out: it asks about each by itself."""
    one, deadly, other = (plan(micro_batch=micro, accumulation=1) for micro in (1, 66, 2))
    compiler = child_of()
    with pytest.raises(DoesNotCompile, match="was killed by signal 9"):
        compiler.measure([one, deadly])
    assert len(started(tmp_path)) == 1
    assert compiler.measure([one, other]) == [0.25, 0.25]
    assert len(started(tmp_path)) == 2


def test_a_use_of_an_answer_is_noted_and_the_time_when_it_was_written_stays(child_of, tmp_path):
    compiler = child_of()
    compiler.static()
    (path,) = (tmp_path / "answers").iterdir()
    os.utime(path, (10, 20))
    compiler.static()
    assert path.stat().st_mtime == 20
    assert path.stat().st_atime > time.time() - 600


@pytest.mark.parametrize("damage", ["", '{"seconds": '])
def test_an_answer_that_is_damaged_or_gone_is_asked_for_again(child_of, tmp_path, damage):
    compiler = child_of()
    assert compiler.measure([plan()]) == [0.25]
    (path,) = (tmp_path / "answers").iterdir()
    path.write_text(damage)
    assert compiler.measure([plan()]) == [0.25]
    assert json.loads(path.read_text())["answer"] == [0.25]


def test_answers_that_cannot_be_written_are_answers_all_the_same(child_of, tmp_path):
    (tmp_path / "answers").write_text("a file")
    assert child_of().static() == STATIC


def test_an_answer_is_kept_for_the_same_question_and_only_for_that(child_of, tmp_path, monkeypatch):
    first = child_of()
    first.analyse(plan(async_save=True, prefetch=1, pinned=("remat",)))
    first.analyse(plan(async_save=False, prefetch=9))
    assert first.compiles == 1, "what does not reach the compiler asks nothing new"
    first.analyse(plan(remat="block"))
    assert first.compiles == 2

    again = child_of()
    again.analyse(plan(remat="block"))
    assert again.compiles == 0
    assert len(started(tmp_path)) == 1

    other = child_of(replace(SUBJECT, recipe={"kind": "another"}))
    other.analyse(plan(remat="block"))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with_flags = child_of()
    with_flags.analyse(plan(remat="block"))
    assert (other.compiles, with_flags.compiles) == (1, 1)


def test_rates_and_times_are_of_a_chip_a_card_and_its_driver(child_of, tmp_path):
    """What one card measured is no answer for another, nor for another driver."""
    cards = [Card("NVIDIA H200", 140 * GIB, driver=driver) for driver in ("580.1", "590.2")]
    subjects = [replace(SUBJECT, chip=chip("l4")), *(replace(SUBJECT, chip=chip("h200"), card=card) for card in cards)]
    for subject in [*subjects, *subjects]:
        compiler = child_of(subject)
        assert compiler.rates().source == subject.chip.name
        assert compiler.measure([plan()]) == [0.25]
    assert len(started(tmp_path)) == 3


def test_imports_are_weighed_once_for_all_recipes_of_the_same_parts_and_again_for_other_source(
    child_of, tmp_path, monkeypatch
):
    for width in (8, 16):
        subject = replace(SUBJECT, recipe={"kind": "a", "fields": {"width": width}})
        assert child_of(subject).imported_bytes() == 104_000_000
    assert len(started(tmp_path)) == 1

    monkeypatch.setattr("plimsoll.planner.child.software_digest", lambda: "other source")
    child_of().imported_bytes()
    assert len(started(tmp_path)) == 2


def test_a_failed_compile_is_a_data_point_and_the_child_lives_on(child_of, tmp_path):
    compiler = child_of()
    with pytest.raises(DoesNotCompile, match="RESOURCE_EXHAUSTED"):
        analyse(compiler, 13)
    assert analyse(compiler, 1).temp_bytes == 7
    assert len(started(tmp_path)) == 1


@pytest.mark.parametrize(
    ("micro", "words"),
    [
        (66, "killed by signal 9"),
        (67, "ended with code 41: fatal: the tensor is cursed"),
        (68, "this is no JSON"),
        (69, "neither"),
    ],
)
def test_a_child_that_ends_or_talks_nonsense_costs_one_plan_and_is_started_again(child_of, tmp_path, micro, words):
    """A failure is not kept: the machine may have had no room."""
    compiler = child_of()
    for _ in range(2):
        with pytest.raises(DoesNotCompile, match=words):
            analyse(compiler, micro)
    assert analyse(compiler, 2).temp_bytes == 7
    assert len(started(tmp_path)) == 3


@pytest.mark.parametrize("micro", [70, 71])  # in the middle of an answer, before one
def test_a_child_that_hangs_is_ended_after_a_while(child_of, micro):
    compiler = child_of(longest=1.0)
    analyse(compiler, 1)
    begun = time.monotonic()
    with pytest.raises(DoesNotCompile, match=r"no answer after 1\.0 s and was stopped"):
        analyse(compiler, micro)
    assert time.monotonic() - begun < 20
    assert analyse(compiler, 2).temp_bytes == 7


def test_what_every_plan_needs_is_asked_again_where_the_child_is_killed(child_of, tmp_path):
    (tmp_path / "started.dies").touch()
    assert child_of().static() == STATIC
    assert len(started(tmp_path)) == 2


def test_a_child_killed_between_two_questions_is_started_again(child_of, tmp_path):
    compiler = child_of()
    analyse(compiler, 1)
    os.kill(started(tmp_path)[0], signal.SIGKILL)
    with pytest.raises(DoesNotCompile, match="killed by signal 9"):
        analyse(compiler, 2)
    assert analyse(compiler, 2).temp_bytes == 7


@pytest.fixture
def pool_of(child_of):
    return lambda count: Pool([child_of() for _ in range(count)])


def ended(tmp_path):
    """Whether no process that was started is there any more."""
    for process in started(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    return True


def test_a_pool_starts_only_the_children_it_needs_and_ends_them(pool_of, tmp_path):
    with pool_of(3) as pool:
        assert pool.workers == 3
        assert started(tmp_path) == []
        assert pool.static() == STATIC
        assert pool.rates().source == "cpu"
        assert pool.trace(plan()).temp_bytes == 7
        assert analyse(pool, 1).temp_bytes == 7
        assert pool.measure([plan(), plan()]) == [0.25, 0.25]
        assert len(started(tmp_path)) == 1, "one question after another: the child that is warm answers all"
    assert ended(tmp_path)


def waiting(tmp_path, micros):
    """Waits until these questions have been read."""
    until = time.monotonic() + 60
    while not all((tmp_path / f"started.{micro}").exists() for micro in micros):
        assert time.monotonic() < until
        time.sleep(0.005)


def test_the_children_of_a_pool_answer_side_by_side_and_their_compiles_add_up(pool_of, tmp_path):
    """Each of two answers only when both have been asked."""
    with pool_of(2) as pool, ThreadPoolExecutor(3) as threads:
        together = [threads.submit(analyse, pool, micro) for micro in (100, 101)]
        waiting(tmp_path, (100, 101))
        third = threads.submit(analyse, pool, 1)
        assert not any(each.done() for each in (*together, third)), "both are busy"
        (tmp_path / "started.go").touch()
        assert [each.result().temp_bytes for each in (*together, third)] == [7, 7, 7]
        assert len(started(tmp_path)) == 2
        assert pool.compiles == 3
    assert ended(tmp_path)


def test_what_was_said_of_the_state_waits_for_no_compile(pool_of, tmp_path):
    """A plan whose time is up, or that was interrupted, is printed with it while a compile goes on."""
    with pool_of(1) as pool, ThreadPoolExecutor(2) as threads:
        pool.static()
        busy = threads.submit(analyse, pool, 100)
        waiting(tmp_path, [100])
        try:
            assert threads.submit(pool.static).result(timeout=5) == STATIC
            assert not busy.done()
        finally:
            (tmp_path / "started.go").touch()
        assert busy.result().temp_bytes == 7


def test_a_child_that_dies_leaves_the_others_at_work_and_is_started_again(pool_of, tmp_path):
    with pool_of(2) as pool, ThreadPoolExecutor(2) as threads:
        busy = threads.submit(analyse, pool, 100)
        waiting(tmp_path, [100])
        with pytest.raises(DoesNotCompile, match="killed by signal 9"):
            analyse(pool, 66)
        assert analyse(pool, 2).temp_bytes == 7
        assert not busy.done()
        (tmp_path / "started.go").touch()
        assert busy.result().temp_bytes == 7
    assert len(started(tmp_path)) == 3


@pytest.mark.parametrize("verb", ["analyse", "trace"])
def test_children_at_work_are_stopped_at_once_and_for_good(pool_of, tmp_path, verb):
    """A search that was interrupted does not wait for answers that nobody needs."""
    with ThreadPoolExecutor(2) as threads:
        try:
            with pool_of(3) as pool:
                ask = getattr(pool, verb)
                busy = [threads.submit(ask, plan(micro_batch=micro, accumulation=1)) for micro in (100, 101)]
                waiting(tmp_path, (100, 101))
            for each in busy:
                with pytest.raises(DoesNotCompile, match="the compile process was "):
                    each.result(timeout=5)
            assert len(started(tmp_path)) == 2
            assert ended(tmp_path)
            assert pool.compiles == 0
        finally:
            (tmp_path / "started.go").touch()


def test_the_clock_of_a_pool_counts_what_kept_answers_took_when_they_were_given(pool_of, tmp_path, monkeypatch):
    """So that a search whose time is limited ends where it did before."""
    with pool_of(1) as first:
        first.analyse(plan(micro_batch=1, accumulation=1))
    (path,) = (tmp_path / "answers").glob("analyse-*.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"seconds": 1_000.0}))
    monkeypatch.setattr(child.time, "monotonic", lambda: 5.0)
    with pool_of(1) as again:
        assert again.clock() == 5.0
        again.analyse(plan(micro_batch=1, accumulation=1))
        assert again.clock() == 1_005.0
