"""`plimsoll doctor`: what it finds here, what it says of a machine that lacks something, how it prints."""

import json

import pytest

from commands import plimsoll
from plimsoll.api.planning import place
from plimsoll.cli import doctor
from plimsoll.errors import RecipeError
from plimsoll.files.folder import locked
from plimsoll.processes import request
from plimsoll.units import GIB, MIB

FOUND = {
    "versions": {"python": "3.11.7", "plimsoll": "0.1.0", **dict.fromkeys(doctor.PACKAGES, "1.0")},
    "memory": {
        "total_bytes": 16 * GIB,
        "available_bytes": 12 * GIB,
        "default_budget_bytes": 10 * GIB,
    },
    "disk": {
        "cache_folder": "/cache",
        "cache_free_bytes": 70 * GIB,
        "cache_limit_bytes": 5 * GIB,
        "cache_parts_bytes": {"compiled": 20 * MIB, "tokens": 9 * MIB, "answers": 1 * MIB},
        "run_folder": "/work/runs",
        "run_free_bytes": 60 * GIB,
    },
    "jax": {
        "backend": "cpu",
        "devices": [{"kind": "cpu", "name": "cpu:0"}],
        "process_bytes": 160 * MIB,
        "flops": {"float32": 194e9, "bfloat16": 247e9},
        "copy_bytes_per_second": 4 * GIB,
    },
}

GOLDEN = """\
  versions            python 3.11.7, plimsoll 0.1.0, jax 1.0, jaxlib 1.0, optax 1.0,
                      orbax-checkpoint 1.0, numpy 1.0, grain 1.0, tokenizers 1.0, datasets 1.0, h5py
                      1.0, pyarrow 1.0
  devices             1: cpu, backend cpu
  matrix products     float32 0.194 TFLOP/s, bfloat16 0.247 TFLOP/s
  memory speed        4.0 GiB/s
  Python and JAX      160.0 MiB
  memory              16.0 GiB
  available           12.0 GiB
  default budget      10.0 GiB
  cache               /cache
    has               compiled 20.0 MiB, tokens 9.0 MiB, answers 1.0 MiB
    has at most       5.0 GiB
    free on its disk  70.0 GiB
  runs                /work/runs
    free on its disk  60.0 GiB

ready"""


def test_golden_doctor():
    assert doctor.report({**FOUND, "mend": [], "ready": True}) == GOLDEN


def test_what_lacks_is_said_with_what_to_do():
    lacking = {
        **FOUND,
        "versions": {**FOUND["versions"], "orbax-checkpoint": None},
        "memory": {**FOUND["memory"], "available_bytes": 200 * MIB},
        "disk": {**FOUND["disk"], "cache_free_bytes": 10 * MIB},
        "jax": {"failed": "no backend"},
    }
    problems = doctor.to_mend(lacking)
    assert len(problems) == 4
    text = doctor.report({**lacking, "mend": problems, "ready": False})
    for part in (
        "not installed: orbax-checkpoint",
        "200.0 MiB of memory",
        "or empty the cache with --empty-cache, or",
        "set PLIMSOLL_CACHE",
        "no backend",
    ):
        assert part in text
    assert "ready" not in text.splitlines()


CARD = FOUND["jax"] | {
    "backend": "gpu",
    "devices": [{"kind": "NVIDIA H100 80GB HBM3", "name": "cuda:0"}],
    "flops": {"float32": 51e12, "bfloat16": 798e12},
    "copy_bytes_per_second": 3.0e12,
    "launch_seconds": 3e-6,
    "host_link_bytes_per_second": 50e9,
}
"""What an H100 measured of its products and its memory (notes, "On a card"); the rest is made up."""


def test_rates_of_a_card_stand_beside_its_data_sheet():
    text = doctor.report({**FOUND, "jax": CARD, "mend": [], "ready": True})
    for row in (
        "devices             1: NVIDIA H100 80GB HBM3, backend gpu",
        "matrix products     float32 51 TFLOP/s, bfloat16 798 TFLOP/s",
        "memory speed        2.7 TiB/s",
        "a small kernel      0.003 ms",
        "from pinned memory  46.6 GiB/s",
        "its data sheet      float32 67 TFLOP/s, tf32 494.5 TFLOP/s, bfloat16 989.5 TFLOP/s",
        "memory 3,350 GB/s",
    ):
        assert row in text
    unlisted = CARD | {"devices": [{"kind": "NVIDIA Unheard Of", "name": "cuda:0"}]}
    assert "sheet" not in doctor.report({**FOUND, "jax": unlisted, "mend": [], "ready": True})


def test_an_accelerator_that_cannot_be_used_is_to_be_mended(monkeypatch, capsys):
    def broken(*_, **__):
        raise RecipeError("an NVIDIA GPU and JAX's plug-in for it are in this machine, and JAX cannot use it: too old")

    monkeypatch.setattr(place, "chip_here", broken)
    assert doctor.doctor([]) == 2
    assert "to mend: JAX does not work here: an NVIDIA GPU and JAX's plug-in" in capsys.readouterr().out


def test_a_cpu_is_not_ready_where_a_card_was_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(request, "ask", lambda *_, **__: FOUND["jax"])
    assert doctor.doctor(["--chip", "h100"]) == 2
    assert "to mend: JAX does not work here: it finds only a CPU where h100 was asked for" in capsys.readouterr().out
    assert doctor.doctor(["--chip", "cpu"]) == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_cache_is_emptied_and_nothing_is_examined(tmp_path, monkeypatch, capsys, form):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(request, "ask", pytest.fail)
    for name, size in (("compiled/jit_f-1-cache", 3000), ("answers/a.json", 20), ("tokens/t/meta.json", 500)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert doctor.disk(tmp_path)["cache_parts_bytes"] == {
        "compiled": 3000, "tokens": 500, "answers": 20
    }  # fmt: skip
    with locked(tmp_path / "tokens/t"):
        assert doctor.doctor(["--empty-cache", *form]) == 0
    printed = capsys.readouterr().out
    if form:
        assert json.loads(printed)["removed_bytes"] == {"compiled": 3000, "tokens": 0, "answers": 20}
    else:
        assert printed == (
            f"removed from {tmp_path}: compiled 2.9 KiB, tokens 0 B, answers 20 B\n"
            "still there, in use or not yours: compiled 0 B, tokens 500 B, answers 0 B\n"
        )
    assert doctor.doctor(["--empty-cache"]) == 0
    assert sum(doctor.disk(tmp_path)["cache_parts_bytes"].values()) == 0


def test_this_machine_is_examined(tmp_path):
    done = plimsoll("doctor", "--run", tmp_path / "runs" / "new", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == (0 if result["ready"] else 2)
    assert result["jax"]["backend"] == "cpu"
    assert all(rate > 0 for rate in result["jax"]["flops"].values())
    assert result["memory"]["available_bytes"] <= result["memory"]["total_bytes"]
    assert result["disk"]["run_free_bytes"] > 0
    assert not (tmp_path / "runs").exists()  # asked about, not made
