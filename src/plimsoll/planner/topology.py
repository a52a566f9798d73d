"""Devices that are not here, for the compiler alone: a TPU slice, or NVIDIA GPUs.

Only in a process of the right compile environment, under `environment.for_processes("tpu" or "cuda")`. Nothing can be
allocated on such a device; a function is lowered with `ShapeDtypeStruct(..., sharding=...)` on it and compiled.
The TPU's compiler refuses what does not fit (RESOURCE_EXHAUSTED, with its limit); the GPU's does not: compare its bytes
with `Chip.memory_bytes`. `python -m plimsoll.planner.topology NAME` proves that a chip compiles.
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
    """`jax.Device`s, as many as the chip has, each with the number of its host in `process_index`."""
    if chip.platform == "tpu":
        told: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in chip.compiler.items()
        }
        return topologies.get_topology_desc(platform="tpu", **told).devices  # a chip that went through JSON has lists
    assert chip.platform == "cuda", "a CPU compiles for itself"
    return topologies.get_topology_desc(
        chip.name,
        "cuda",
        target_config=target_config(chip, cudnn=_cudnn(), runtime=_cuda_runtime()),
        topology=f"1x{chip.hosts}x{chip.devices // chip.hosts}",  # slices, hosts of each, GPUs of each
    ).devices


def target_config(chip: Chip, *, cudnn: tuple[int, int, int], runtime: tuple[int, int, int]) -> str:
    """XLA's GpuTargetConfigProto as text, as it would have been read off the card."""
    told = dict(chip.compiler)
    description, capability = told.pop("description"), told.pop("compute_capability")
    major, minor = capability.removesuffix("a").split(".")
    own_instructions = " feature_extension: ACCELERATED_FEATURES" if capability.endswith("a") else ""
    limits = EVERY_GPU | told | {"memory_bandwidth": round(chip.memory_bandwidth)}
    fields = [f"  {name}: {value}" for name, value in limits.items()]
    return "\n".join(
        [
            "gpu_device_info {",
            *fields,
            f"  cuda_compute_capability {{ major: {major} minor: {minor}{own_instructions} }}",
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ {_version(cudnn)} }}",
            f"runtime_version {{ {_version(runtime)} }}",
            f"device_description_str: {json.dumps(description)}",
        ]
    )


def prove(chip: Chip) -> dict[str, Any]:
    """A product of two matrices, split over the devices and compiled: what the compiler says of them and of it."""
    found = devices(chip)
    mesh = Mesh(np.array(found), ("data",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    left = jax.ShapeDtypeStruct((128 * len(found), 256), jnp.float32, sharding=rows)
    right = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=everywhere)
    bytes_ = jax.jit(jnp.matmul).lower(left, right).compile().memory_analysis()
    assert bytes_ is not None
    return {
        "devices": len(found),
        "hosts": len({device.process_index for device in found}),
        "kind": found[0].device_kind,
        "argument_bytes": bytes_.argument_size_in_bytes,
        "output_bytes": bytes_.output_size_in_bytes,
        "temp_bytes": bytes_.temp_size_in_bytes,
    }


def _cudnn() -> tuple[int, int, int]:
    return _installed("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def _cuda_runtime() -> tuple[int, int, int]:
    return _installed("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


def _installed(*packages: str) -> tuple[int, int, int]:
    """The version of the first of them that is there: CUDA 13 and 12 go by different names."""
    found = [each.version for name in packages for each in metadata.distributions(name=name)]
    if not found:
        raise metadata.PackageNotFoundError(packages[0])
    major, minor, patch = found[0].split(".")[:3]
    return int(major), int(minor), int(patch)


def _version(version: tuple[int, int, int]) -> str:
    return "major: {} minor: {} patch: {}".format(*version)


if __name__ == "__main__":
    print(json.dumps({name: prove(chip(name)) for name in sys.argv[1:]}))
