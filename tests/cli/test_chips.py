"""`plimsoll chips`: every chip in one table, each figure with its source, and which compilers are there."""

import json

import pytest

from plimsoll.cli.main import main
from plimsoll.planner.chips import chips
from plimsoll.processes import toolchains


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PLIMSOLL_COMPILERS", str(tmp_path))
    monkeypatch.delenv("PLIMSOLL_CHIPS", raising=False)


def printed(capsys, *arguments):
    assert main(["chips", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_has_every_chip_and_says_which_compilers_are_missing(capsys):
    text = printed(capsys)
    labels = {line.split()[0] for line in text.splitlines() if line}
    for chip in chips():
        assert (f"{chip.name.rpartition('-')[0]}-N" if chip.platform == "tpu" else chip.name) in labels
    (h200,) = (line.split() for line in text.splitlines() if line.startswith("h200 "))
    assert h200 == ["h200", "1", "1", "140.0", "GiB", "67", "494.5", "989.5", "989.5", "4,800", "-"]
    (t4,) = (line.split() for line in text.splitlines() if line.startswith("t4 "))
    assert t4 == ["t4", "1", "1", "13.8", "GiB", "8.1", "-", "-", "65", "300", "-"]
    assert "tpu compiler        not installed: `plimsoll chips --install tpu`" in text
    assert max(map(len, text.splitlines())) <= 100


def test_one_chip_says_where_every_figure_is_from_and_a_family_lists_its_sizes(capsys):
    text = printed(capsys, "tpu-v5e-8")
    assert text.startswith("tpu-v5e-8 (tpu), devices: 8, hosts: 1\n")
    assert text.count("from: ") == 6
    assert "host memory bytes   357.6 GiB" in text
    assert "measured when it is planned for" in printed(capsys, "cpu")
    lines = printed(capsys, "tpu-v4").splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("tpu-v4-64 ")] == [["tpu-v4-64", "32", "8"]]
    assert not any(line.startswith("h100") for line in lines)


def test_json_is_one_object_with_every_size(capsys):
    result = json.loads(printed(capsys, "--json"))
    assert [each["name"] for each in result["chips"]] == [chip.name for chip in chips()]
    assert result["compilers"] == {"tpu": "not installed", "cuda": "not installed"}
    (alone,) = json.loads(printed(capsys, "h100x8", "--json"))["chips"]
    assert (alone["devices"], alone["memory_bytes"]) == (8, 83_869_237_248)


def test_installing_says_what_it_does_beside_the_output(capsys, monkeypatch):
    monkeypatch.setattr(toolchains, "install", lambda platform, say: say(f"making {platform}"))
    assert main(["chips", "--install", "cuda", "--json"]) == 0
    result = capsys.readouterr()
    assert result.err == "making cuda\n"
    assert json.loads(result.out)["chips"]
