"""JAX devices of a TPU slice or of NVIDIA GPUs that are not in this machine, to compile for them.

Works only in a process with the environment `environment.for_processes("tpu" or "cuda")`. Nothing can be allocated on
such a device. A function is lowered with `ShapeDtypeStruct(..., sharding=...)` on the device, and compiled. The TPU's
compiler refuses a function that does not fit (RESOURCE_EXHAUSTED, with the limit). The GPU's compiler does not, so
compare its bytes with `Chip.memory_bytes`. `python -m plimsoll.planner.topology NAME` checks that a chip compiles.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plimsoll.planner.chips import Chip, chip

EVERY_GPU = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}
"""Limits that all compute capabilities from 7.5 to 12.0 share (CUDA C++ Programming Guide)."""


def devices(chip: Chip) -> list[Any]:
    """Returns the chip's `jax.Device`s. The `process_index` of a device is the index of its host."""
    if chip.platform == "tpu":
        options: dict[str, Any] = {  # JSON has turned tuples into lists
            name: tuple(value) if isinstance(value, list) else value for name, value in chip.compiler.items()
        }
        return topologies.get_topology_desc(platform="tpu", **options).devices
    assert chip.platform == "cuda", "a CPU compiles for itself"
    cudnn = _installed("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
    runtime = _installed("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
    return topologies.get_topology_desc(
        chip.name,
        "cuda",
        target_config=target_config(chip, cudnn=cudnn, runtime=runtime),
        topology=f"1x{chip.hosts}x{chip.devices // chip.hosts}",  # slices x hosts per slice x GPUs per host
    ).devices


def target_config(chip: Chip, *, cudnn: tuple[int, int, int], runtime: tuple[int, int, int]) -> str:
    """Returns XLA's GpuTargetConfigProto of a GPU as text. For a GPU in the machine, JAX reads it from the GPU."""
    compiler = dict(chip.compiler)
    description, capability = compiler.pop("description"), compiler.pop("compute_capability")
    major, minor = capability.removesuffix("a").split(".")
    own_instructions = " feature_extension: ACCELERATED_FEATURES" if capability.endswith("a") else ""
    limits = EVERY_GPU | compiler | {"memory_bandwidth": round(chip.memory_bandwidth)}
    fields = [f"  {name}: {value}" for name, value in limits.items()]
    return "\n".join(
        [
            "gpu_device_info {",
            *fields,
            f"  cuda_compute_capability {{ major: {major} minor: {minor}{own_instructions} }}",
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info {{ major: {} minor: {} patch: {} }}".format(*cudnn),
            "runtime_version {{ major: {} minor: {} patch: {} }}".format(*runtime),
            f"device_description_str: {json.dumps(description)}",
        ]
    )


def prove(chip: Chip) -> dict[str, Any]:
    """Compiles a matmul that is split over the chip's devices, and returns the bytes that the compiler reports."""
    listed = devices(chip)
    mesh = Mesh(np.array(listed), ("data",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    left = jax.ShapeDtypeStruct((128 * len(listed), 256), jnp.float32, sharding=rows)
    right = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=everywhere)
    bytes_ = jax.jit(jnp.matmul).lower(left, right).compile().memory_analysis()
    assert bytes_ is not None
    return {
        "devices": len(listed),
        "hosts": len({device.process_index for device in listed}),
        "kind": listed[0].device_kind,
        "argument_bytes": bytes_.argument_size_in_bytes,
        "output_bytes": bytes_.output_size_in_bytes,
        "temp_bytes": bytes_.temp_size_in_bytes,
    }


def _installed(*packages: str) -> tuple[int, int, int]:
    """Returns the version of the first installed package. Names of CUDA's packages differ between CUDA 12 and 13."""
    versions = [each.version for name in packages for each in metadata.distributions(name=name)]
    if not versions:
        raise metadata.PackageNotFoundError(packages[0])
    major, minor, patch = versions[0].split(".")[:3]
    return int(major), int(minor), int(patch)


if __name__ == "__main__":
    print(json.dumps({name: prove(chip(name)) for name in sys.argv[1:]}))
