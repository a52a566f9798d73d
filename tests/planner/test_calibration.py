"""What earlier sessions teach: few teach nothing, their order does not matter, no line is passed because of them."""

import importlib.metadata
import json
import multiprocessing
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_examples import REHEARSAL, STATIC, analysis, plan, problem
from plimsoll.planned import RUNNING, Ledger
from plimsoll.planner import calibration
from plimsoll.planner.calibration import ENOUGH, FILE, KEPT, Sample, corrections, error_band
from plimsoll.planner.estimate import LEARNED, LOADING_BYTES, RUNNING_BYTES, ledger
from plimsoll.planner.types import Correction, Learned
from plimsoll.units import GIB, MIB

PREDICTED = 300 * MIB


def sample(*, predicted=PREDICTED, **lacking):
    """A session that measured these phases, in MiB more than predicted."""
    computed = dict.fromkeys(("load", "start", *RUNNING), predicted)
    measured = {phase: round(predicted + more * MIB) for phase, more in lacking.items()}
    return Sample(predicted=computed, corrected=computed, measured=measured, plan={"micro_batch": 4})


def of_train(*lacking):
    return [sample(train=more) for more in lacking]


def moved(found):
    return {phase: one.more_bytes for phase, one in corrections(found).items()}


samples = st.lists(st.floats(-60, 200).map(lambda more: sample(train=more)), max_size=20)


@given(of=st.lists(st.floats(-60, 200), max_size=ENOUGH - 1))
def test_too_few_sessions_move_nothing(of):
    assert moved(of_train(*of)) == {}


@given(st.data(), samples)
def test_the_order_of_sessions_does_not_matter(data, found):
    assert moved(data.draw(st.permutations(found))) == moved(found)
    assert error_band(data.draw(st.permutations(found))) == error_band(found)


@given(samples)
def test_no_session_that_stayed_under_its_prediction_would_pass_the_corrected_one(found):
    more = moved(found).get("train", 0)
    for one in found:
        lacking = one.lacking()["train"]
        assert lacking > 0 or lacking <= more


@given(samples, st.integers(0, 60 * MIB))
def test_had_every_session_needed_more_the_correction_would_not_be_less(found, more):
    heavier = [replace(one, measured={phase: size + more for phase, size in one.measured.items()}) for one in found]
    assert moved(heavier).get("train", 0) >= moved(found).get("train", 0)


@pytest.mark.parametrize(
    ("lacking", "more"),
    [
        ((5, 5, 5), 5),
        ((1, 5, 100), 5),  # one odd session of three moves nothing
        ((2, 3, 4, 90), 4),
        ((2, 4, 6, 8, 10), 8),  # of more, the upper quartile: too low is worse than too high
        ((-9, -9, -9), -9),
        ((-12, -9, -8), -4),  # less what they themselves differ by
        ((-12, -9, 1), 0),  # one that needed more forbids it
        ((-12, -9, -1), 0),
        ((200, 200, 200), 75),  # a quarter of what was predicted at most
    ],
)
def test_golden_corrections(lacking, more):
    assert moved(of_train(*lacking)).get("train", 0) == more * MIB


def test_each_phase_learns_from_the_sessions_that_measured_it():
    found = [sample(load=2, train=10), sample(load=2, train=10), sample(load=2), sample(load=2, save=50)]
    assert moved(found) == {"load": 2 * MIB}
    assert moved([*found, sample(load=2, train=10)]) == {"load": 2 * MIB, "train": 10 * MIB}


def test_the_error_band_is_of_what_was_promised():
    promised = [replace(one, corrected={"train": PREDICTED + 5 * MIB}) for one in of_train(2, 6, 9)]
    assert error_band([]) == {"sessions": 0}
    assert error_band(promised) == {
        "sessions": 3,
        "lowest_bytes": -3 * MIB,
        "median_bytes": MIB,
        "highest_bytes": 4 * MIB,
    }


def test_a_byte_is_learned_too():
    assert moved(of_train(*[1 / MIB] * 3)) == {"train": 1}
    assert moved(of_train(*[-1 / MIB] * 3)) == {"train": -1}


@pytest.mark.parametrize(
    ("measured", "error"), [({"train": 130, "load": 20}, 60), ({"train": 130, "save": 140}, 40), ({"other": 90}, -10)]
)
def test_an_error_is_of_the_phase_in_which_the_peak_was_measured(measured, error):
    session = Sample(
        predicted={"train": 1, "save": 1}, corrected={"train": 70, "save": 100}, measured=measured, plan={}
    )
    assert error_band([session]) == {
        "sessions": 1,
        "median_bytes": error,
        "lowest_bytes": error,
        "highest_bytes": error,
    }


def test_a_correction_is_of_what_was_predicted_at_least_and_says_up_to_where_it_was_seen():
    """A quarter of the smallest of 100, 200 and 400 MiB; seen up to the largest."""
    found = [sample(predicted=size * MIB, train=90) for size in (200, 100, 400)]
    assert corrections(found) == {"train": Correction(more_bytes=25 * MIB, seen_bytes=400 * MIB)}


@pytest.mark.parametrize(("source", "expected"), [("compiled", None), ("estimated", {
    "lowest": -0.22, "highest": 0.32, "plans": 20,
    "lowest_peak_bytes": 1_000 + 7_600, "highest_peak_bytes": 1_000 + 12_800,
})])  # fmt: skip
def test_where_a_compilers_bytes_may_be_that_were_estimated(source, expected):
    """Of 9,728 bytes of temporaries: over 1.28, and over 0.76. What is exact stays."""
    book = Ledger(
        budget_bytes=GIB, predicted={"state": 1_000, "step temporaries": 9_700, "other temporaries": 28},
        phase="train", source=source,
    )  # fmt: skip
    assert calibration.estimate_band(book) == expected


def test_over_several_devices_estimates_were_further_off():
    book = Ledger(
        budget_bytes=GIB, predicted={"state": 1_000, "step temporaries": 7_958}, phase="train", source="estimated"
    )  # 46 * 173
    assert calibration.estimate_band(book, devices=8) == {
        "lowest": -0.42, "highest": 1.17, "plans": 32,
        "lowest_peak_bytes": 1_000 + 4_600, "highest_peak_bytes": 1_000 + 17_300,
    }  # fmt: skip


def test_sessions_are_added_one_after_the_other(tmp_path, monkeypatch):
    locked = []
    monkeypatch.setattr(calibration.fcntl, "flock", lambda file, how: locked.append((file.name, how)))
    calibration.add(tmp_path, "a", sample(train=1))
    assert locked == [(str(tmp_path / f"{FILE}.lock"), calibration.fcntl.LOCK_EX)]


def priced(learned, *, temp=50 * MIB):
    return ledger(plan(), problem(GIB, learned=learned), static=STATIC, analysis=analysis(temp), rehearsal=REHEARSAL)


learned_corrections = st.dictionaries(
    st.sampled_from(["load", "start", "restore", *RUNNING]),
    st.builds(Correction, more_bytes=st.integers(-GIB, GIB), seen_bytes=st.integers(0, GIB)),
)


@given(learned_corrections, st.integers(0, GIB))
def test_a_prediction_never_falls_below_what_is_exact_compiled_or_rehearsed(corrected, margin):
    plain, found = priced(Learned()), priced(Learned(corrections=corrected, margin_bytes=margin))
    for phase, peak in plain.phases.items():
        allowance = LOADING_BYTES if phase == "load" else RUNNING_BYTES
        assert found.phases[phase] >= peak - allowance
        assert found.phases[phase] - peak == found.learned.get(phase, 0)
    assert found.predicted_peak_bytes == max(found.phases.values()) == found.phases[found.phase]
    assert min(found.predicted.values()) >= 0


def test_a_margin_is_no_less_than_itself_and_holds_where_a_plan_decides():
    more = {"train": 5 * MIB, "save": 40 * MIB, "load": MIB}
    corrected = {phase: Correction(more_bytes=size, seen_bytes=0) for phase, size in more.items()}
    found = priced(Learned(corrections=corrected, margin_bytes=30 * MIB))
    learned = {"train": 30 * MIB, "evaluate": 30 * MIB, "save": 40 * MIB, "load": MIB}
    assert found.learned == learned
    assert found.predicted[LEARNED] == learned[found.phase]


def test_bytes_are_taken_away_only_from_what_is_no_larger_than_what_was_seen():
    """Small runs that needed less say nothing about a large one; had they needed more, they would."""
    computed = priced(Learned()).phases["train"]
    small, large = computed - 1, computed
    for more, seen, added in [(-9, small, 0), (-9, large, -9), (9, small, 9), (9, large, 9)]:
        learned = Learned(corrections={"train": Correction(more_bytes=more * MIB, seen_bytes=seen)})
        assert priced(learned).phases["train"] == computed + added * MIB


def test_nothing_learned_changes_nothing():
    nothing = priced(Learned())
    assert nothing == ledger(plan(), problem(GIB), static=STATIC, analysis=analysis(50 * MIB), rehearsal=REHEARSAL)
    assert nothing.learned == {}
    assert LEARNED not in nothing.predicted


def test_what_is_added_is_read_back_by_its_key_and_the_newest_are_kept(tmp_path):
    for more in range(67):
        assert calibration.add(tmp_path, "a", sample(train=more)) is None
    calibration.add(tmp_path, "b", sample(train=-1))
    found, problem = calibration.read(tmp_path, "a")
    assert problem is None
    assert found == of_train(*range(3, 67))
    assert calibration.read(tmp_path, "b") == (of_train(-1), None)
    assert calibration.read(tmp_path, "c") == ([], None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}.lock"]


def test_keys_are_bounded_too(tmp_path):
    for number in range(KEPT + 2):
        calibration.add(tmp_path, f"kind {number}", sample(train=1))
    kept = json.loads((tmp_path / FILE).read_text())
    assert list(kept) == [f"kind {number}" for number in range(2, KEPT + 2)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 3}', '{"a": [{}]}', '{"a": [[]]}', '{"a": [{"plan": 1}]}',
    '{"a": [{"predicted": {"train": "x"}, "corrected": {"train": 1}, "measured": {"train": 1}, "plan": {}}]}',
    '{"a": [{"predicted": {"train": 1}, "corrected": {"train": 1}, "measured": {}, "plan": {}}]}', "\udcff"],
)  # fmt: skip
def test_a_damaged_file_is_said_ignored_and_replaced(tmp_path, text):
    (tmp_path / FILE).write_bytes(text.encode(errors="surrogateescape"))
    found, problem = calibration.read(tmp_path, "a")
    assert found == []
    assert problem is not None
    assert f"{tmp_path / FILE} is damaged" in problem
    said = calibration.add(tmp_path, "a", sample(train=1))
    assert said is not None
    assert calibration.read(tmp_path, "a") == (of_train(1), None)


def _add(folder, more):
    calibration.add(folder, "a", sample(train=more))


def test_sessions_that_end_at_once_do_not_lose_each_other(tmp_path):
    processes = [multiprocessing.get_context("fork").Process(target=_add, args=(tmp_path, n)) for n in range(12)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found, _ = calibration.read(tmp_path, "a")
    assert sorted(one.lacking()["train"] for one in found) == [n * MIB for n in range(12)]


def test_a_key_tells_kinds_chips_and_versions_apart():
    key = calibration.key_of("stories", "cpu")
    assert len({key, calibration.key_of("other", "cpu"), calibration.key_of("stories", "h200")}) == 3
    assert all(name in key for name in ("stories", "cpu", "plimsoll 0", "jax 0", os.uname().machine, "python 3"))


def test_a_checkout_that_is_not_installed_has_a_key_too(monkeypatch):
    def version(name):
        if name == "plimsoll-jax":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "plimsoll unknown, jax 1.0" in calibration.key_of("stories", "cpu")


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CALIBRATION", "off")
    assert not calibration.is_on()
    monkeypatch.delenv("PLIMSOLL_CALIBRATION")
    assert calibration.is_on()
