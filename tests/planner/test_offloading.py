"""When something goes to the host: after what costs less, never on a CPU, and its bytes and seconds count."""

from dataclasses import dataclass, replace

import pytest

from for_cuda import answer_for_cuda
from planner_examples import FakeCompiler, problem, search
from plimsoll.api.planning.ask import ask
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.planner.objectives import SMALL
from plimsoll.recipes.registry import preset
from plimsoll.units import GIB, MIB

MOVED = 20 * MIB - 8
LINK = 1e9
SUPPORTED = ("precision", "remat", "loss_chunk", "offload", "optimizer_bits", "weight_bits")


@dataclass
class FakeCard(FakeCompiler):
    """Whose optimizer state may move, but for two counts, over a link of 1 GB/s."""

    link: float = LINK
    flops: dict | None = None
    frozen: int = 0

    def static(self, fsdp=1, storage=None):
        return replace(super().static(fsdp, storage), movable={"optimizer": MOVED, "frozen": self.frozen})

    def rates(self):
        known = super().rates()
        return replace(known, host_link_bytes=self.link, flops=self.flops or known.flops)


def on_a_card(budget, compiler=None, **changes):
    about = {"chip": "h200", "platform": "cuda", "supported": SUPPORTED} | changes
    return search(problem(budget, **about), compiler or FakeCard())


def floor_without():
    with pytest.raises(BudgetError) as refused:
        on_a_card(MIB, pins={"offload": "none"})
    return refused.value.floor_bytes


def test_where_there_is_room_nothing_moves_and_no_plan_is_compiled_for_it():
    compiler = FakeCard()
    assert on_a_card(GIB, compiler).plan.offload == "none"
    assert all(asked.offload == "none" for _, asked in compiler.asked)


def test_it_moves_where_nothing_else_that_is_exact_fits():
    floor = floor_without()
    assert on_a_card(2 * floor).plan.offload == "none"
    at_the_floor = on_a_card(floor)
    assert at_the_floor.step_seconds <= (1 + SMALL) * on_a_card(floor, pins={"offload": "none"}).step_seconds
    tight = on_a_card(floor - MIB)
    assert tight.plan.offload == "optimizer"
    assert tight.ledger.predicted_peak_bytes <= floor - MIB
    assert tight.plan.numerics == "mixed", "the numbers are none of its business"


@dataclass
class FakeCardThatKeeps(FakeCard):
    def analyse(self, plan):
        if plan.lever("remat") != "offload":
            return super().analyse(plan)
        as_block = super().analyse(plan.with_levers(remat="block"))
        self.asked[-1] = ("analyse", plan)
        kept = 16 * MIB * plan.micro_batch
        return replace(as_block, temp_bytes=as_block.temp_bytes - kept // 2, host_temp_bytes=kept // 2)


def test_the_inputs_of_blocks_go_to_the_host_only_where_blocks_alone_do_not_fit():
    able = (*SUPPORTED, "remat_offload")
    with pytest.raises(BudgetError) as refused:
        on_a_card(MIB, FakeCardThatKeeps(), pins={"offload": "none"})
    floor = refused.value.floor_bytes
    roomy, tight = FakeCardThatKeeps(), FakeCardThatKeeps()
    assert on_a_card(floor, roomy, supported=able, pins={"offload": "none"}).plan.lever("remat") == "block"
    chosen = on_a_card(floor - MIB, tight, supported=able, pins={"offload": "none"})
    assert chosen.plan.lever("remat") == "offload"
    assert chosen.ledger.predicted_peak_bytes <= floor - MIB
    with pytest.raises(BudgetError):
        on_a_card(floor - MIB, FakeCardThatKeeps(), pins={"offload": "none"})  # of a recipe that does not support it
    with pytest.raises(BudgetError):
        search(problem(floor - MIB, supported=able), FakeCardThatKeeps())  # on a CPU


def card_with_frozen():
    """Six of its ten MiB of weights are frozen layers."""
    return FakeCard(frozen=6 * MIB)


ABLE = (*SUPPORTED, "frozen_offload")


def test_frozen_weights_move_where_the_optimizers_state_alone_is_not_enough():
    def smallest(supported, **pins):
        with pytest.raises(BudgetError) as refused:
            on_a_card(MIB, card_with_frozen(), supported=supported, pins=pins)
        return refused.value.floor_bytes

    with_state = smallest(SUPPORTED)
    assert smallest(ABLE, offload="frozen") > with_state > smallest(ABLE)
    chosen = on_a_card(with_state - MIB, card_with_frozen(), supported=ABLE)
    assert chosen.plan.offload == "all"
    assert chosen.ledger.predicted_peak_bytes <= with_state - MIB
    only = tuple(name for name in ABLE if name != "offload")
    floor = smallest(only, offload="none")
    assert on_a_card(floor - MIB, card_with_frozen(), supported=only).plan.offload == "frozen"


def test_frozen_weights_in_fewer_bits_and_a_state_in_8_go_with_it():
    pins = {"offload": "frozen", "optimizer_bits": 8, "frozen_bits": 4}
    assert on_a_card(GIB, card_with_frozen(), supported=ABLE, pins=pins).plan.offload == "frozen"
    with pytest.raises(RecipeError, match="--offload all is refused with --optimizer-bits 8"):
        on_a_card(GIB, card_with_frozen(), supported=ABLE, pins=pins | {"offload": "all"})


@pytest.mark.parametrize("offload", ["frozen", "all"])
def test_where_nothing_is_frozen_it_is_refused(offload):
    words = f"--offload {offload} would change nothing: toy has no frozen weights large enough to be moved"
    with pytest.raises(RecipeError, match=words):
        on_a_card(GIB, FakeCard(), supported=ABLE, pins={"offload": offload})
    with pytest.raises(RecipeError, match=f"--offload {offload} would change nothing: the loss of"):
        ask(Question(recipe=preset("stories"), name="stories", pins={"offload": offload}, chip="h200"))


ALL_FLOPS = {"float32": 1e9, "bfloat16": 2e9, "float16": 2e9}
MOVING = {"offload": "optimizer"}
NO_LINK = r"is refused on b200: how fast it reaches its host's memory is not known.* host_link_bandwidth in a chip file"


@pytest.mark.parametrize(
    ("card", "chip", "pins", "words"),
    [
        ({}, "cpu", MOVING, r"--offload optimizer is refused on cpu, where .* plan for an accelerator with --chip$"),
        ({}, "cpu", {"remat": "offload"}, r"--remat offload is refused on cpu, where .* accelerator with --chip$"),
        ({"link": 0.0}, "b200", MOVING, f"--offload optimizer {NO_LINK}"),
        ({"link": 0.0}, "b200", {"remat": "offload"}, f"--remat offload {NO_LINK}"),
        ({}, "h200", MOVING | {"optimizer_bits": 8}, r"refused with --optimizer-bits 8 --weight-bits 32"),
        ({}, "h200", MOVING | {"weight_bits": 24}, r"refused with --optimizer-bits 32 --weight-bits 24"),
        ({"flops": ALL_FLOPS}, "h200", MOVING | {"precision": "float16"}, r"refused with --precision float16"),
        ({"flops": {"float32": 1e9, "float16": 8e9}}, "h200", MOVING, r"refused with --precision float16"),
    ],
)
def test_where_it_cannot_help_it_is_refused_in_a_sentence(card, chip, pins, words):
    compiler = FakeCard(**card)
    with pytest.raises(RecipeError, match=words):
        on_a_card(GIB, compiler, chip=chip, platform="cpu" if chip == "cpu" else "cuda", pins=pins)
    assert compiler.compiles == 0


COMPILED = """
import json, sys
from plimsoll.planner.chips import chip
from plimsoll.planner.topology import devices
from plimsoll.recipes.registry import preset
from plimsoll.training.program import Functions, compiled
from plimsoll.types import StepOptions
from plimsoll.planned import Plan
from plimsoll.types import Levers
from plimsoll.levers.lora import LoRA
layers, length, batch = map(int, sys.argv[2:])
recipe = preset("stories").replace(width=256, layers=layers, heads=4, vocab_size=512, seq_len=length, batch_size=batch)
plan = Plan(chip=sys.argv[1], accumulation=1, levers=Levers(micro_batch=batch, remat="block", loss_chunk=64,
            precision="float32", prefetch=0, async_save=False, unroll=0))
found, names = {}, ("argument", "host_argument", "temp", "host_temp", "alias", "host_alias")
wheres = {"device": {}, "optimizer": {"offload": "optimizer"}, "remat": {"remat": "offload"},
          "lora": {}, "lora, frozen": {"offload": "frozen"}}
for where, levers in wheres.items():
    one = plan.with_levers(**levers)
    platform = {"cuda": "gpu", "tpu": "tpu"}[chip(sys.argv[1]).platform]
    task = recipe.task(one.compute(platform))
    task = LoRA(task, "q,v", rank=4) if "lora" in where else task
    spread = Functions(task, recipe.update_rule(10), one, StepOptions(), devices(chip(sys.argv[1])))
    stats = compiled(spread.step(recipe.spec.batch(batch))[0], platform=platform).memory_analysis()
    found[where] = {name: getattr(stats, name + "_size_in_bytes") for name in names}
print(json.dumps(found))
"""


SIZES = {"cuda": ("h200", 12, 128, 32), "tpu": ("tpu-v5e-1", 6, 64, 2)}
"""Layers, positions, examples. Inputs of blocks are at the peak of the first, which takes a TPU's compiler minutes."""


@pytest.mark.slow
@pytest.mark.parametrize("platform", SIZES)
def test_the_real_compilers_need_fewer_bytes_of_the_device(platform):
    name, layers, length, batch = SIZES[platform]
    found = answer_for_cuda(COMPILED, name, layers, length, batch, platform=platform)
    device, hosted = found["device"], found["optimizer"]
    moved = device["argument"] - hosted["argument"]
    assert device["host_argument"] == 0
    assert moved == pytest.approx(hosted["host_argument"], rel=0.02)  # a TPU pads what lies in tiles
    assert moved > 0.6 * device["argument"]
    assert hosted["host_alias"] == hosted["host_argument"], "it is written over where it lies"
    assert hosted["temp"] - device["temp"] < 0.5 * moved, "what is on its way is a piece, not all of it"
    inputs, kept = layers * batch * length * 256 * 4, found["remat"]  # as wide as the model, in float32
    assert (device["host_temp"], kept["host_temp"]) == (0, inputs)
    base, frozen = found["lora"], found["lora, frozen"]
    moved = base["argument"] - frozen["argument"]
    assert moved == pytest.approx(frozen["host_argument"], rel=0.02)
    assert moved > 0.8 * base["argument"]
    assert frozen["host_alias"] == frozen["host_argument"]
    assert frozen["temp"] - base["temp"] < 3 * moved / layers, "what is on its way is a layer, not all of them"
    if platform == "cuda":  # so small a step has all of them on the chip of a TPU, where they are not counted
        assert device["temp"] - kept["temp"] > 0.6 * inputs
