"""Loading a pretrained model: the most that is resident, beside the stored form and the largest tensor.

    PYTHONPATH=benchmarks python benchmarks/load_pretrained.py [--mb 300]
    PYTHONPATH=benchmarks python benchmarks/load_pretrained.py --mb 0 --layers 8 --width 768 --make FOLDER

Makes a Llama of random weights of about that many MB in bfloat16, as one file and as shards, in a temporary folder.
Each form is loaded in a process of its own, whose resident set is read before and whose `VmHWM` after: what it grew by
is to be at most the stored form and the largest tensor. JAX and its compiler are started before. --make only makes the
folder, for other programs to read.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.environment import ROOT
from text_vs_trainer import conditions

OUT = ROOT / "bench-out/load_pretrained.json"
MIB = 2**20
LAYERS, WIDTH = 12, 1024


def made(folder: Path, megabytes: int, *, shards: int, layers: int = LAYERS, width: int = WIDTH) -> None:
    """A Hugging Face folder, its tensors drawn and written one at a time."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from plimsoll.models.pretrained.config import read_shape

    folder.mkdir()
    config = {
        "model_type": "llama",
        "vocab_size": 1024,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 256,
        "intermediate_size": width * 11 // 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rest = megabytes * 10**6 // 2 - read_shape(folder).parameters()
    config["vocab_size"] += max(0, rest // width)
    (folder / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(0)
    tensors = {
        name: (0.02 * draw.standard_normal(sides, np.float32)).astype(ml_dtypes.bfloat16)
        for name, sides in read_shape(folder).tensors().items()
    }
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / file)
        weight_map |= dict.fromkeys(names[shard::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def measured(folder: Path, bits: int) -> dict[str, float]:
    """Measures in this process the bytes before, the stored form's, and the most while loading."""
    import time

    import jax
    import jax.numpy as jnp

    from plimsoll.levers.frozen import packed
    from plimsoll.models.pretrained.config import read_shape
    from plimsoll.models.pretrained.safetensors_folder import checked
    from plimsoll.models.pretrained.weights import load
    from plimsoll.training.memory import peak_resident_bytes, resident_bytes
    from plimsoll.training.program import tree_bytes

    for form in (8, 4):  # the compiler, and its threads
        jax.block_until_ready(jax.jit(lambda x, form=form: packed(x, form))(jnp.ones((128, 8))))
    shape = read_shape(folder)
    largest = max(tensor.shape[0] * math.prod(tensor.shape[1:]) for tensor in checked(folder, shape).values())
    before = resident_bytes()
    started = time.perf_counter()
    params = jax.block_until_ready(load(folder, shape, bits=bits))
    seconds = time.perf_counter() - started
    return {
        "bits": bits,
        "stored_bytes": tree_bytes(params),
        "largest_tensor_bytes": 2 * largest,
        "grown_bytes": peak_resident_bytes() - before,
        "before_bytes": before,
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=300, help="size of the folder, 10^6 bytes")
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "BITS"), help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH, help="a multiple of 256")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="make it here, and measure nothing")
    options = parser.parse_args()
    if options.make:
        made(options.make, options.mb, shards=1, layers=options.layers, width=options.width)
        return 0
    if options.one:
        print(json.dumps(measured(Path(options.one[0]), int(options.one[1]))))
        return 0
    rows = []
    print(f"{'files':>5} {'bits':>4} {'stored':>9} {'largest':>9} {'grew by':>9} {'beyond stored':>13} {'seconds':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        for files in (1, 4):
            folder = Path(temporary) / str(files)
            made(folder, options.mb, shards=files, layers=options.layers, width=options.width)
            for bits in (32, 16, 8, 4):
                command = [sys.executable, __file__, "--one", str(folder), str(bits)]
                environment = os.environ | {"JAX_PLATFORMS": "cpu"}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                row = {"files": files, **json.loads(done.stdout)}
                rows.append(row)
                stored, largest, grown = (row[f"{name}_bytes"] / MIB for name in ("stored", "largest_tensor", "grown"))
                print(
                    f"{files:>5} {bits:>4} {stored:>6.1f}MiB {largest:>6.1f}MiB {grown:>6.1f}MiB"
                    f" {grown - stored:>10.1f}MiB {row['seconds']:>8.1f}",
                    flush=True,
                )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"conditions": conditions(options), "rows": rows}, indent=1))
    beyond = [row for row in rows if row["grown_bytes"] > row["stored_bytes"] + row["largest_tensor_bytes"]]
    print("within the stored form and the largest tensor" if not beyond else f"{len(beyond)} forms beyond it")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
