"""The answer by formula: printed before a compiler is asked, marked as estimated, with an interval and a verdict."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from planner_examples import STATIC
from plimsoll.api import plan as api_plan
from plimsoll.cli.main import main
from plimsoll.errors import BudgetError
from plimsoll.planned import AtOnce, ByFormula, verdict_of
from plimsoll.planner.child import Pool
from plimsoll.recipes.finetune.recipe import Finetune
from plimsoll.report.tables import at_once_table
from plimsoll.types import Storage
from plimsoll.units import GIB
from report_examples import PLAN, PLANNED

WORDS = ["plan", "finetune", "--pretrained", "meta-llama/Llama-3.1-8B", "--frozen-bits", "4", "--seq-len", "8192"]


@pytest.fixture
def searched(monkeypatch, capsys):
    """What was printed before the search began."""
    printed = []

    def search(problem, compiler, say, **how):
        printed.append(capsys.readouterr())
        return replace(PLANNED, plan=replace(PLAN, chip="rtx4090", micro_batch=1, accumulation=8))

    monkeypatch.setattr(api_plan, "search", search)
    monkeypatch.setattr(Pool, "static", lambda self: STATIC)
    return printed


def test_it_is_printed_at_once_and_the_compiled_plan_follows(searched, capsys):
    assert main([*WORDS, "--chip", "rtx4090"]) == 0
    (before,) = searched
    text = " ".join(before.out.split())
    assert "estimated it fits, by formula: the smallest plan needs 7." in text
    assert "of 22.5 GiB smallest plan micro-batch 1 x 8, remat offload" in text
    after = capsys.readouterr().out
    assert after.startswith("plan for")
    assert "by formula" in after


def test_json_stays_one_object_with_the_verdicts_and_the_interval(searched, capsys):
    assert main([*WORDS, "--chip", "rtx4090", "--json"]) == 0
    (before,) = searched
    assert before.out == ""
    assert "estimated" in before.err
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["source"]) == ("fits", "compiled")
    assert (answer["at_once"]["verdict"], answer["at_once"]["source"]) == ("fits", "estimated")
    smallest = answer["at_once"]["smallest"]
    assert 0 < smallest["low_bytes"] < smallest["likely_bytes"] < smallest["high_bytes"] < 22.5 * GIB
    assert answer["at_once"]["chosen"]["plan"]["micro_batch"] == 1


@pytest.mark.parametrize(
    ("model", "verdict"), [("meta-llama/Llama-3.1-70B", "does not fit"), ("Qwen/Qwen2.5-32B", "fits")]
)
def test_the_verdict_is_that_of_the_smallest_plan(searched, capsys, model, verdict):
    assert main(["plan", "finetune", "--pretrained", model, "--frozen-bits", "4", "--chip", "rtx4090", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["at_once"]["verdict"] == verdict


def test_a_refusal_has_its_verdict_and_is_uncertain_only_where_nothing_was_compiled(monkeypatch, capsys, tmp_path):
    def verdict(floor, *, compiled):
        def search(problem, compiler, say, **how):
            compiler.doing = "compiling" if compiled else "estimating"
            raise BudgetError("no plan fits", budget_bytes=problem.budget_bytes, floor_bytes=floor)

        monkeypatch.setattr(api_plan, "search", search)
        assert main([*WORDS, "--chip", "rtx4090", "--memory", "10GiB", "--json"]) == 2
        answer = json.loads(capsys.readouterr().out)
        assert answer["fits"] is False
        return answer["verdict"]

    assert verdict(11 * GIB, compiled=True) == "does not fit"
    assert verdict(11 * GIB, compiled=False) == "uncertain"  # a compiler has needed 0.71 times as much
    assert verdict(20 * GIB, compiled=False) == "does not fit"
    assert verdict(None, compiled=True) == "uncertain"  # nothing compiles


def test_an_estimated_plan_is_uncertain_where_its_band_reaches_over_the_budget():
    ledger = replace(PLANNED.ledger, source="estimated")
    band = {"lowest_peak_bytes": GIB, "highest_peak_bytes": 2 * GIB}
    assert replace(PLANNED, ledger=ledger, estimate_band=band).verdict == "fits"
    band |= {"highest_peak_bytes": 2 * GIB + 1}
    assert replace(PLANNED, ledger=ledger, estimate_band=band).verdict == "uncertain"
    assert replace(PLANNED, ledger=replace(ledger, budget_bytes=GIB)).verdict == "does not fit"
    assert PLANNED.verdict == "fits"


def test_an_interval_says_of_a_budget_that_it_fits_does_not_or_that_nobody_knows():
    assert [verdict_of(4, 6, budget) for budget in (3, 4, 5, 6)] == ["does not fit", "uncertain", "uncertain", "fits"]
    smallest = ByFormula(plan=PLAN, low_bytes=GIB, likely_bytes=2 * GIB, high_bytes=3 * GIB)
    text = " ".join(at_once_table(AtOnce(budget_bytes=2 * GIB, smallest=smallest)).split())
    assert "whether it fits is uncertain until the compiler has been asked, by formula" in text
    assert "needs 2.0 GiB (1.0 GiB to 3.0 GiB) of 2.0 GiB" in text


@pytest.mark.parametrize("words", [["stories", "--chip", "rtx4090"], ["finetune", "--chip", "cpu"]])
def test_what_has_no_formula_says_nothing(searched, capsys, words):
    assert main(["plan", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["at_once"] is None
    assert searched[0].out == ""


def test_state_and_temporaries_need_no_jax():
    code = (
        "import sys; from plimsoll.api.at_once import at_once; from plimsoll.recipes.finetune.recipe import Finetune;"
        "from plimsoll.types import Storage; Finetune().state_by_formula(Storage()); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Finetune().state_by_formula(Storage())["parameters"] == 139_399_488
