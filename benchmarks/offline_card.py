"""Steps for a card that is not here, compiled by its own compiler: bytes, work and kernels beside what a card measured.

    python benchmarks/offline_card.py [--chip h100] [--only "97.5M, 16"] [--text FOLDER]

Needs the compile environment (`plimsoll chips --install cuda`); nothing runs. Every step is that of one of plimsoll's
own recipes, with the levers that are named. Of each it prints

* temporaries, by the compiler;
* operations of the products, traced, and the bytes that kernels read and write, by the shapes of the compiled step:
  a loop counts as often as it turns, and a kernel that reads or writes a part of an operand counts all of it;
* kernels that are started, and calls of cuDNN's attention and of cuBLAS among them;
* seconds as a plan estimates them, from the kernels (`planner/kernel_seconds.py`);
* buffers of float32 above 64 MiB that are alive at the peak, with the line they come from.

MEASURED is what an H100 did (notes, "On a card: the levers"): bytes beside the state, of a decoder written by
hand or of plimsoll as it was then. Prints one line a step, writes one JSON to bench-out/.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

MIB = 2**20
LARGE = 64 * MIB
"""Size from which a buffer of float32 is named."""
DECODER = {"width": 768, "layers": 12, "heads": 12, "vocab_size": 16_384, "seq_len": 1_024}
"""97.5M parameters."""
FLOAT32 = {"precision": "bfloat16", "activations": "float32"}
BFLOAT16 = {"precision": "bfloat16", "activations": "bfloat16"}


class Case(NamedTuple):
    """A recipe, its sizes, how its batch goes through, and the levers besides the plain ones."""

    recipe: str
    sizes: dict[str, Any]
    micro_batch: int
    accumulation: int
    levers: dict[str, Any]


CASES: dict[str, Case] = {
    "97.5M, 16": Case("code", DECODER, 16, 1, BFLOAT16),
    "97.5M, 16 x 4": Case("code", DECODER, 16, 4, BFLOAT16),
    "97.5M, 64": Case("code", DECODER, 64, 1, BFLOAT16),
    "97.5M, 16, scan": Case("code", DECODER, 16, 1, BFLOAT16 | {"unroll": 0}),
    "97.5M, 16, float32 activations": Case("code", DECODER, 16, 1, FLOAT32),
    "97.5M, 16, float32 activations, scan": Case("code", DECODER, 16, 1, FLOAT32 | {"unroll": 0}),
    "97.5M, 16, remat dots": Case("code", DECODER, 16, 1, BFLOAT16 | {"remat": "dots"}),
    "97.5M, 16, remat block": Case("code", DECODER, 16, 1, BFLOAT16 | {"remat": "block"}),
    "97.5M, 16, remat dots, scan": Case("code", DECODER, 16, 1, BFLOAT16 | {"remat": "dots", "unroll": 0}),
    "97.5M, 16, remat block, scan": Case("code", DECODER, 16, 1, BFLOAT16 | {"remat": "block", "unroll": 0}),
    "97.5M, 16, loss chunk 8,192": Case("code", DECODER, 16, 1, BFLOAT16 | {"loss_chunk": 8_192}),
    "97.5M, 16, loss chunk 256": Case("code", DECODER, 16, 1, BFLOAT16 | {"loss_chunk": 256}),
    "code, 128 x 4": Case("code", {}, 64, 1, BFLOAT16),
    "longcontext-nano 32K, 1 x 4": Case(
        "longcontext-nano", {"seq_len": 32_768}, 1, 4, BFLOAT16 | {"loss_chunk": 2_048}
    ),
    "sudoku-mlp, 768": Case("sudoku-mlp", {}, 768, 1, BFLOAT16),
    "sudoku-mlp, 384 x 2": Case("sudoku-mlp", {}, 384, 2, BFLOAT16),
    "sudoku-mlp, 768, float32 activations": Case("sudoku-mlp", {}, 768, 1, FLOAT32),
}  # fmt: skip
MEASURED: dict[str, dict[str, Any]] = {
    "97.5M, 16": {"MiB": 6_927, "seconds": 16 * 1_024 / 509_310, "by": "hand"},
    "97.5M, 16 x 4": {"MiB": 7_299, "seconds": 64 * 1_024 / 529_739, "by": "hand"},
    "97.5M, 64": {"MiB": 27_028, "seconds": 64 * 1_024 / 582_452, "by": "hand"},
    "97.5M, 16, scan": {"MiB": 11_223, "seconds": 16 * 1_024 / 349_219, "by": "hand"},
    "97.5M, 16, float32 activations": {"MiB": 9_251, "seconds": 16 * 1_024 / 279_181, "by": "hand"},
    "97.5M, 16, float32 activations, scan": {"MiB": 15_258, "seconds": 16 * 1_024 / 369_000, "by": "plimsoll"},
}
"""Case to what an H100 took: MiB beside the state, and seconds of a step. Of a run in 16 x 16 the seconds are those of
one of the 16."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--chip", default="h100", help="a GPU, as `plimsoll chips` calls it")
    options.add_argument("--only", nargs="*", help="names of the steps to compile; default all")
    options.add_argument("--text", type=Path, help="folder to write the compiled steps into, as text")
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.here:
        for name in given.only:
            print(json.dumps(compiled_step(name, given.chip, given.text)), flush=True)
        return
    rows = []
    for row in from_child(given.chip, given.only or list(CASES), given.text):
        rows.append(row)
        print(line(row), flush=True)
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "offline_card.json").write_text(json.dumps({"chip": given.chip, "rows": rows}, indent=1))


def from_child(name: str, only: list[str], text: Path | None) -> Any:
    """Yields a row for each step, from one process in the chip's compile environment."""
    from plimsoll.planner.chips import chip
    from plimsoll.processes import environment, toolchains

    platform: Any = chip(name).platform
    python = toolchains.python_for(platform)
    if python is None:
        sys.exit(f"{name}: its compiler is {toolchains.missing(platform)}: `plimsoll chips --install {platform}`")
    variables = environment.for_processes(platform) | {"PYTHONPATH": str(SOURCE)}
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # steps are counted: each is compiled
    command = [str(python), __file__, "--chip", name, "--here", *(["--text", str(text)] if text else []), "--only"]
    with subprocess.Popen([*command, *only], env=variables, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield from map(json.loads, child.stdout)
    if child.returncode:
        sys.exit(f"the compile process ended with code {child.returncode}")


def compiled_step(name: str, chip_name: str, text: Path | None) -> dict[str, Any]:
    """Compiles one step and counts what is in it."""
    from dataclasses import asdict

    from plimsoll.engine.compile import analysis_of
    from plimsoll.engine.cross_compile import CrossCompiler
    from plimsoll.planned import Plan
    from plimsoll.planner.chips import chip
    from plimsoll.planner.flops import dots
    from plimsoll.planner.hlo.buffers import largest_temporaries
    from plimsoll.planner.speed import step_seconds
    from plimsoll.recipes.registry import preset
    from plimsoll.recipes.saved import to_dict

    case = CASES[name]
    recipe = replace(
        preset(case.recipe), **case.sizes, batch_size=case.micro_batch, gradient_accumulation_steps=case.accumulation
    )
    compiler = CrossCompiler(
        {"recipe": to_dict(recipe), "steps": 1_000, "chip": asdict(chip(chip_name)), "compiled": True}
    )
    plan = Plan(
        chip=chip_name, micro_batch=case.micro_batch, accumulation=case.accumulation, prefetch=2, async_save=False,
        **{"remat": "none", "loss_chunk": 0} | {k: v for k, v in case.levers.items() if k in Plan.__dataclass_fields__},
    ).with_levers(**case.levers)  # fmt: skip
    lowered, jaxpr = compiler.functions(plan).step(recipe.batch_spec(recipe.effective_batch))
    started = time.process_time()
    compiled: Any = compiler.executable(lowered, plan)
    took = time.process_time() - started
    analysis = analysis_of(
        compiled,
        flops=compiler._flops(plan),
        moved_bytes=dots(jaxpr).moved_bytes,
        **compiler._of_kernels(compiled),
    )
    module = compiled.as_text()
    if text is not None:
        text.mkdir(parents=True, exist_ok=True)
        (text / f"{name}.txt").write_text(module)
    counted = Counted(module)
    large: Counter[str] = Counter()
    for buffer in largest_temporaries(compiled, most=10_000):
        if buffer.shape.startswith("float32") and buffer.bytes >= LARGE:
            large[f"{buffer.shape} {buffer.what} {buffer.place}"] += buffer.bytes
    return {
        "name": name,
        "temporary_bytes": analysis.temp_bytes,
        "flops": analysis.flops,
        "bytes_accessed": counted.bytes,
        "kernels": counted.kernels,
        "attention_calls": counted.calls["cudnn"],
        "cublas_calls": counted.calls["cublas"],
        "seconds": step_seconds(plan, analysis, compiler.static(1, plan.storage), compiler.rates()),
        "compile_seconds": took,
        "large_float32": dict(large),
    }


SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s64": 8, "u64": 8, "f64": 8, "c64": 8}
NO_KERNEL = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "opt-barrier", "optimization-barrier", "partition-id", "replica-id",
}  # fmt: skip
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")


class Counted:
    """Kernels of a compiled module's text, and the bytes of their operands and results."""

    def __init__(self, module: str) -> None:
        self.kernels, self.bytes, self.calls = 0, 0, Counter[str]()
        self._computations: dict[str, list[tuple[str, str, str, str]]] = {}
        entry = current = ""
        for row in module.splitlines():
            if row.endswith("{") and not row.startswith(" "):
                current = row.removeprefix("ENTRY ").split()[0].lstrip("%")
                entry = current if row.startswith("ENTRY") else entry
                self._computations[current] = []
            elif match := INSTRUCTION.match(row):
                self._computations[current].append(match.groups())  # type: ignore[arg-type]
        self._add(entry, 1)

    def _add(self, computation: str, times: int) -> None:
        sizes = {name: _bytes(shape) for name, shape, *_ in self._computations[computation]}
        for _, shape, opcode, rest in self._computations[computation]:
            called = re.findall(r"(?:body|to_apply|calls|branch_computations)=\{?%?([\w.-]+)", rest)
            if opcode == "while":
                trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
                self._add(called[0], times * (int(trips[1]) if trips else 1))
            elif opcode in ("call", "conditional"):
                for each in called:
                    self._add(each, times)
            if opcode in NO_KERNEL or opcode.endswith("-done"):
                continue
            operands = re.findall(r"%([\w.-]+)", rest.split("), ")[0])
            self.kernels += times
            self.bytes += times * (_bytes(shape) + sum(sizes.get(operand, 0) for operand in operands))
            for library, mark in (("cudnn", "__cudnn$fmha"), ("cublas", "__cublas")):
                self.calls[library] += times * (f'custom_call_target="{mark}' in rest)


def _bytes(shape: str) -> int:
    total = 0
    for kind, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        size = SIZES.get(kind, 4)
        for dimension in filter(None, dimensions.split(",")):
            size *= int(dimension)
        total += size
    return total


def line(row: dict[str, Any]) -> str:
    measured = MEASURED.get(row["name"])
    words = [
        f"{row['name']:38} {row['temporary_bytes'] / MIB:8,.0f} MiB",
        f"{row['flops'] / 1e12:7.2f} Tflop",
        f"{row['bytes_accessed'] / 1e9:8,.1f} GB",
        f"{row['kernels']:7,} kernels",
        f"{row['attention_calls']:4} cuDNN {row['cublas_calls']:5} cuBLAS",
        f"{1e3 * row['seconds']:7.1f} ms",
        f"compiled in {row['compile_seconds']:.0f} s",
    ]
    if measured:
        words.append(f"| by {measured['by']} {measured['MiB']:,} MiB, {1e3 * measured['seconds']:.1f} ms")
    buffers = [f"\n    {size / MIB:8,.0f} MiB {what}" for what, size in row["large_float32"].items()]
    return "  ".join(words) + "".join(buffers)


if __name__ == "__main__":
    main()
