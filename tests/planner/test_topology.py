"""Devices for the compiler alone agree with the catalogue: the real compilers are asked, where they are installed."""

import json
import re
import subprocess
from functools import cache

import pytest

from plimsoll.planner import topology
from plimsoll.planner.chips import chip, chips
from plimsoll.processes import toolchains
from plimsoll.processes.environment import for_processes

pytestmark = pytest.mark.slow


def start(platform, *arguments):
    python = toolchains.python_for(platform)
    if python is None:
        pytest.skip(f"the {platform} compiler: {toolchains.missing(platform)} (`plimsoll chips --install {platform}`)")
    return subprocess.Popen(
        [python, *arguments], env=for_processes(platform), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process):
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-2000:]
    return said


@cache
def proofs(platform, *names):
    return json.loads(answer(start(platform, "-m", "plimsoll.planner.topology", *names)))


TPUS = ("tpu-v3-8", "tpu-v4-64", "tpu-v5p-16", "tpu-v5e-1", "tpu-v5e-8", "tpu-v5e-16", "tpu-v6e-4", "tpu-v7x-8")
GPUS = (*(each.name for each in chips() if each.platform == "cuda"), "h100x8")


@pytest.mark.parametrize("name", [*TPUS, *GPUS])
def test_the_compiler_sees_the_devices_and_hosts_of_the_catalogue(name):
    platform, names = ("tpu", TPUS) if name in TPUS else ("cuda", GPUS)
    expected, found = chip(name), proofs(platform, *names)[name]
    assert (found["devices"], found["hosts"]) == (expected.devices, expected.hosts)
    argument = 4 * (128 * 256 + 256 * 256)  # of one device: its rows, and all of the other matrix
    assert (found["argument_bytes"], found["output_bytes"]) == (argument, 4 * 128 * 256)


TOO_LARGE = """
import sys, jax, jax.numpy as jnp
from plimsoll.planner.chips import chip, chips
from plimsoll.planner.topology import devices
for name in sys.argv[1:]:
    one = jax.sharding.SingleDeviceSharding(devices(chip(name))[0])
    try:
        jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((2**37,), jnp.bfloat16, sharding=one)).compile()
        print(name, "compiled")
    except jax.errors.JaxRuntimeError as problem:
        print(name, str(problem).splitlines()[0])
"""


def test_a_tpu_refuses_beyond_the_memory_of_the_catalogue():
    names = ("tpu-v3-8", "tpu-v4-8", "tpu-v5p-8", "tpu-v5e-1", "tpu-v6e-1", "tpu-v7x-8")
    said = answer(start("tpu", "-c", TOO_LARGE, *names))
    limits = dict(
        re.findall(r"^(tpu-\S+) RESOURCE_EXHAUSTED.*exceeds available HBM \((\d+\.\d+)G\)", said, re.MULTILINE)
    )
    assert limits.keys() == set(names), said
    for name, limit in limits.items():
        assert 0 <= float(limit) * 2**30 - chip(name).memory_bytes <= 0.0051 * 2**30, "it is printed rounded"


def test_a_gpu_does_not_refuse_so_the_planner_must():
    assert answer(start("cuda", "-c", TOO_LARGE, "l4")).splitlines()[-1] == "l4 compiled"


LARGEST = """
import json, sys, jax, jax.numpy as jnp
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.buffers import largest_temporaries
from plimsoll.planner.hlo.buffers import scheduled
from plimsoll.planner.chips import chip, chips
from plimsoll.planner.topology import devices
one = jax.sharding.SingleDeviceSharding(devices(chip(sys.argv[1]))[0])
shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=one)
def layer(x, kernel):
    return x + jnp.tanh(x @ kernel) @ kernel.T, None
def loss(kernels, x):
    return jnp.sum(jax.lax.scan(layer, x, kernels)[0] ** 2)
compiled = jax.jit(jax.grad(loss)).lower(shape(6, 1024, 4096), shape(16384, 1024)).compile()
module = Module(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
listed = [one.bytes for one in scheduled(module)]
largest = largest_temporaries(compiled)
print(json.dumps([compiled.memory_analysis().temp_size_in_bytes, sum(listed), largest[0].shape]))
"""


@pytest.mark.parametrize(("platform", "name", "within"), [("cuda", "h200", 0.05), ("tpu", "tpu-v5e-1", 0.2)])
def test_the_largest_temporaries_of_a_chip_that_is_not_here(platform, name, within):
    """Its compiler gives no buffer assignment away: the schedule says what is alive, and it adds up."""
    total, listed, shape = json.loads(answer(start(platform, "-c", LARGEST, name)).splitlines()[-1])
    assert listed == pytest.approx(total, rel=within)
    assert shape == "float32[6,16384,4096]"


def test_two_compilers_for_a_tpu_do_not_collide():
    both = [start("tpu", "-m", "plimsoll.planner.topology", "tpu-v5e-1") for _ in range(2)]
    assert len({answer(process) for process in both}) == 1


def test_what_the_gpu_compiler_is_told_is_the_card():
    text = topology.target_config(chip("h100"), cudnn=(9, 12, 0), runtime=(13, 0, 0))
    told = dict(line.strip().split(": ", 1) for line in text.splitlines() if re.match(r"  \w+: ", line))
    assert told["core_count"] == "132"
    assert told["memory_bandwidth"] == "3350000000000"
    assert told["device_memory_size"] == "84942979072"
    assert "cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }" in text
    assert "dnn_version_info { major: 9 minor: 12 patch: 0 }" in text
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in text
    assert "feature_extension" not in topology.target_config(chip("t4"), cudnn=(9, 0, 0), runtime=(13, 0, 0))
