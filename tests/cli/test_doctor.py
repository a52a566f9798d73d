"""`plimsoll doctor`: what it finds here, what it says of a machine that lacks something, how it prints."""

import json

from commands import plimsoll
from plimsoll.cli import doctor
from plimsoll.units import GIB, MIB

FOUND = {
    "versions": {"python": "3.11.7", "plimsoll": "0.1.0", **dict.fromkeys(doctor.PACKAGES, "1.0")},
    "memory": {
        "total_bytes": 16 * GIB,
        "available_bytes": 12 * GIB,
        "cgroup_room_bytes": None,
        "default_budget_bytes": 10 * GIB,
    },
    "disk": {
        "cache_folder": "/cache",
        "cache_free_bytes": 70 * GIB,
        "cache_bytes": 20 * MIB,
        "run_folder": "/work/runs",
        "run_free_bytes": 60 * GIB,
    },
    "plugins": ["jax_plugins.xla_cuda12"],
    "jax": {
        "backend": "cpu",
        "devices": [{"kind": "cpu", "name": "cpu:0"}],
        "process_bytes": 160 * MIB,
        "flops": {"float32": 194e9, "bfloat16": 247e9},
        "copy_bytes_per_second": 4 * GIB,
        "transfer_bytes_per_second": 3 * GIB,
        "step_seconds": 0.0012,
    },
}

GOLDEN = """\
  versions            python 3.11.7, plimsoll 0.1.0, jax 1.0, jaxlib 1.0, flax 1.0, optax 1.0,
                      orbax-checkpoint 1.0, grain 1.0, numpy 1.0, tokenizers 1.0, datasets 1.0
  devices             1 on the backend cpu: cpu
  a jitted step       1.2 ms
  dots                194 GFLOP/s in float32, 247 GFLOP/s in bfloat16
  memory speed        4.0 GiB/s, host to device 3.0 GiB/s
  process             160.0 MiB for Python and JAX alone
  memory              16.0 GiB, available 12.0 GiB
  control group       no limit
  default budget      10.0 GiB (--memory sets another)
  compile cache       20.0 MiB in /cache, 70.0 GiB free
  runs                /work/runs, 60.0 GiB free
  JAX plug-ins        jax_plugins.xla_cuda12: hidden from runs on cpu

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
    for part in ("not installed: orbax-checkpoint", "200.0 MiB of memory", "set PLIMSOLL_CACHE", "no backend"):
        assert part in text
    assert "ready" not in text.splitlines()


def test_this_machine_is_examined(tmp_path):
    done = plimsoll("doctor", "--run", tmp_path / "runs" / "new", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == (0 if result["ready"] else 2)
    assert result["jax"]["backend"] == "cpu"
    assert all(rate > 0 for rate in result["jax"]["flops"].values())
    assert result["jax"]["transfer_bytes_per_second"] > 0
    assert result["memory"]["available_bytes"] <= result["memory"]["total_bytes"]
    assert result["disk"]["run_free_bytes"] > 0
    assert not (tmp_path / "runs").exists()  # asked about, not made
