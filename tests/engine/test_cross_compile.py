"""What is asked about a chip that is not here, answered without its compiler."""

import dataclasses
import json
import subprocess
import typing

import pytest

from planner_examples import plan
from plimsoll.engine.cross_compile import CrossCompiler, cublas_workspace
from plimsoll.planner.chips import chip
from plimsoll.processes import toolchains
from plimsoll.processes.environment import for_processes
from plimsoll.recipes.saved import to_dict
from plimsoll.recipes.text.recipe import Text
from plimsoll.types import Precision
from plimsoll.units import MIB

RECIPE = Text(dataset_id="there-is-no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=4)


PLAN = plan(chip="rtx4090", accumulation=1, precision="bfloat16")


def compiler_of(name: str) -> CrossCompiler:
    about = {"recipe": to_dict(RECIPE), "steps": 10, "chip": dataclasses.asdict(chip(name)), "compiled": False}
    return CrossCompiler(about)


def test_every_precision_of_a_card_is_answered_on_a_machine_without_it():
    """A CPU refuses TF32, and the arithmetic of a card's step is counted on one."""
    card = compiler_of("rtx4090")
    plans = [dataclasses.replace(PLAN, precision=precision) for precision in typing.get_args(Precision)]
    counted = {card.analyse(each).flops for each in plans}
    assert len(counted) == 1
    assert min(counted) > 0


def test_products_of_newer_cards_have_a_larger_workspace_and_other_chips_none():
    assert [cublas_workspace(capability) for capability in ("7.5", "8.0", "9.0a", "10.0a")] == [
        4 * MIB,
        4 * MIB,
        32 * MIB,
        32 * MIB,
    ]
    h100 = compiler_of("h100")
    assert (h100.workspace, compiler_of("tpu-v5e-8").workspace) == (32 * MIB, 0)
    with_it = h100.trace(PLAN).temp_bytes
    h100.workspace = 0
    assert with_it - h100.trace(PLAN).temp_bytes > 30 * MIB


COMPARED = """
import dataclasses, json, sys
from plimsoll.engine.cross_compile import CrossCompiler
from plimsoll.planner.child import plan_of

about, plan = json.loads(sys.argv[1]), plan_of(json.loads(sys.argv[2]))
for options in ("without machine code", "with it"):
    compiler = CrossCompiler(about)
    compiler.options = compiler.options if options == "without machine code" else {}
    print(json.dumps(dataclasses.asdict(compiler.analyse(plan))))
"""


@pytest.mark.slow
def test_bytes_and_kernels_are_those_of_a_step_compiled_with_its_machine_code():
    python = toolchains.python_for("cuda")
    if python is None:
        pytest.skip("the compiler for GPUs is not installed: plimsoll chips --install cuda")
    about = {"recipe": to_dict(RECIPE), "steps": 10, "chip": dataclasses.asdict(chip("h100")), "compiled": True}
    words = [COMPARED, json.dumps(about), json.dumps(dataclasses.replace(PLAN, chip="h100").to_dict())]
    done = subprocess.run(
        [str(python), "-c", *words], env=for_processes("cuda"), capture_output=True, text=True, check=True
    )
    without, with_it = done.stdout.splitlines()[-2:]
    assert without == with_it
    assert json.loads(without)["kernels"] > 0


SEVERAL = """
import json, sys
from plimsoll.engine.cross_compile import CrossCompiler
from plimsoll.planner.child import plan_of

for words in sys.argv[2:]:
    print(json.dumps(CrossCompiler(json.loads(sys.argv[1])).analyse(plan_of(json.loads(words))).kernels))
"""


@pytest.mark.slow
def test_several_cards_share_a_batch_whose_attention_is_cudnns():
    """The partitioner cannot split cuDNN's kernel, and refused it among several cards."""
    python = toolchains.python_for("cuda")
    if python is None:
        pytest.skip("the compiler for GPUs is not installed: plimsoll chips --install cuda")
    recipe = dataclasses.replace(RECIPE, width=128, heads=2, seq_len=128, batch_size=8)
    about = {"recipe": to_dict(recipe), "steps": 10, "chip": dataclasses.asdict(chip("h100x4")), "compiled": True}
    plans = [dataclasses.replace(PLAN, chip="h100x4", micro_batch=8, devices=4, fsdp=fsdp) for fsdp in (1, 2, 4)]
    words = [SEVERAL, json.dumps(about), *(json.dumps(each.to_dict()) for each in plans)]
    done = subprocess.run(
        [str(python), "-c", *words], env=for_processes("cuda"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 3
