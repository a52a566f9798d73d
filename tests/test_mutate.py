"""The program that mutates the package: what it changes is one line of what is computed, and the seed decides what."""

from pathlib import Path

import pytest

from programs import program

ROOT = Path(__file__).parents[1]
SOURCE = '''"""Sums above 3 + 4."""


def chosen(values: Literal[1, 2], most: int = 5) -> int:
    kept = [value for value in values if not value < most and value != 2]
    if kept:
        log.write("é", len(kept) - 1)
    else:
        raise ValueError(f"nothing below {most + 1}")
    return min(kept) if kept else most
'''


@pytest.fixture(scope="module")
def mutate():
    with program("mutate") as loaded:
        yield loaded


def test_what_is_computed_is_mutated_and_no_annotation_message_or_text(mutate):
    found = {(one.kind, one.old, one.new) for one in mutate.mutations("a.py", SOURCE)}
    assert found == {
        ("constant", "5", "6"),
        ("constant", "2", "3"),
        ("constant", "1", "2"),
        ("not dropped", "not ", ""),
        ("comparison", "<", "<="),
        ("comparison", "!=", "=="),
        ("and/or", "and", "or"),
        ("sign", "-", "+"),
        ("call removed", 'log.write("é", len(kept) - 1)', "pass"),
        ("branches swapped", "kept", "not (kept)"),
        ("branches swapped", "min(kept) if kept else most", "most if kept else min(kept)"),
        ("min/max", "min", "max"),
    }


def test_a_mutation_changes_one_line(mutate):
    before = SOURCE.splitlines()
    for one in mutate.mutations("a.py", SOURCE):
        after = one.applied(SOURCE).splitlines()
        changed = [number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
        assert changed == [one.line], one


@pytest.mark.slow
def test_a_larger_draw_begins_with_the_smaller_and_another_seed_draws_others(mutate):
    groups = ["metrics", "levers"]
    few, many, others = (mutate.drawn(ROOT, groups, seed, count) for seed, count in ((1, 4), (1, 10), (2, 4)))
    assert many[:4] == few != others
    assert [group for group, _ in few] == ["metrics", "levers", "metrics", "levers"]


def test_the_tests_of_a_module_begin_with_its_own(mutate):
    assert mutate.tests_of(ROOT, "planner", "planner/estimate.py")[0] == "tests/planner/test_estimate.py"
    assert "tests/optimizers/test_adamw8.py" in mutate.tests_of(ROOT, "levers", "optimizers/shards.py")
    assert "tests/data/test_words.py" in mutate.tests_of(ROOT, "data", "data/__init__.py")
    for group, names in mutate.FALLBACK.items():
        assert all((ROOT / name).is_file() for name in names), group
        assert all(list((ROOT / mutate.PACKAGE).glob(pattern)) for pattern in mutate.GROUPS[group][:1]), group
