"""A plan for a chip whose compiler is not here: it says that, how far off it may be, and what to do."""

import json

from commands import TINY
from plimsoll.cli.main import main


def test_an_estimated_plan_says_so_in_every_form(text_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PLIMSOLL_COMPILERS", str(tmp_path))
    words = ["plan", "stories", "--dataset-id", str(text_file), *TINY, "--chip", "h200"]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    assert "the compiler for h200 is not installed. Its bytes are estimated until" in printed.err
    found = json.loads(printed.out)
    band, traced = found["estimate_band"], found["components"]["step temporaries"]
    assert found["source"] == "estimated"
    assert band["lowest_peak_bytes"] < found["predicted_peak_bytes"] < band["highest_peak_bytes"]
    spread = (1 / 0.87 - 1 / 1.49) * traced
    assert abs(band["highest_peak_bytes"] - band["lowest_peak_bytes"] - spread) <= 2
    assert main(words) == 0  # answers are kept: nothing is traced again
    table = capsys.readouterr().out
    assert "(estimated)" in table
    assert "estimated           without a compiler: a peak from" in table
