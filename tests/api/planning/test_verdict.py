"""The verdict of a plan and of a refusal: it fits, it does not, or nobody knows until a compiler has answered."""

import json
from dataclasses import replace

from plimsoll.api.planning import find
from plimsoll.cli.main import main
from plimsoll.errors import BudgetError
from plimsoll.planned import EstimateBand
from plimsoll.units import GIB
from report_examples import PLANNED

WORDS = ["plan", "finetune", "--pretrained", "meta-llama/Llama-3.1-8B", "--frozen-bits", "4", "--seq-len", "8192"]


def test_a_refusal_has_its_verdict_and_is_uncertain_only_where_nothing_was_compiled(monkeypatch, capsys):
    def verdict(floor, *, compiled):
        def refuses(problem, desk):
            desk.compiler.doing = "compiling" if compiled else "estimating"
            raise BudgetError("no plan fits", budget_bytes=problem.budget_bytes, floor_bytes=floor)

        monkeypatch.setattr(find.search, "find_fastest", refuses)
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
    band = EstimateBand(plans=3, lowest_peak_bytes=GIB, highest_peak_bytes=2 * GIB)
    assert replace(PLANNED, ledger=ledger, estimate_band=band).verdict == "fits"
    band = replace(band, highest_peak_bytes=2 * GIB + 1)
    assert replace(PLANNED, ledger=ledger, estimate_band=band).verdict == "uncertain"
    assert replace(PLANNED, ledger=replace(ledger, budget_bytes=GIB)).verdict == "does not fit"
    band = replace(band, lowest_peak_bytes=2 * GIB + 1)
    assert replace(PLANNED, ledger=ledger, estimate_band=band).verdict == "does not fit"
    assert PLANNED.verdict == "fits"
