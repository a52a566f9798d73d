"""A plan for a chip whose compiler is not here: it says that, how far off it may be, and what to do."""

import json

import pytest

from commands import TINY, plimsoll
from plimsoll.cli.main import main


@pytest.fixture(scope="module")
def estimated(text_file, tmp_path_factory):
    """The words of a plan, and what it said."""
    words = ["plan", "stories", "--dataset-id", text_file, *TINY, "--chip", "h200"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLIMSOLL_COMPILERS", str(tmp_path_factory.mktemp("none")))
        yield words, plimsoll(*words, "--json")


def test_an_estimated_plan_says_so_in_every_form(estimated, capsys):
    words, done = estimated
    assert done.returncode == 0, done.stderr
    assert "the compiler for h200 is not installed. Its bytes are estimated until" in done.stderr
    found = json.loads(done.stdout)
    band, traced = found["estimate_band"], found["components"]["step temporaries"]
    assert found["source"] == "estimated"
    assert band["lowest_peak_bytes"] < found["predicted_peak_bytes"] < band["highest_peak_bytes"]
    spread = (1 / 0.76 - 1 / 1.28) * traced
    assert abs(band["highest_peak_bytes"] - band["lowest_peak_bytes"] - spread) <= 2
    assert main([str(word) for word in words]) == 0  # answers are kept: nothing is traced again
    table = capsys.readouterr().out
    assert "(estimated)" in table
    assert "estimated           without a compiler: a peak from" in table
