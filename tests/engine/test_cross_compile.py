"""What is asked about a chip that is not here, answered without its compiler."""

import dataclasses
import typing

import pytest

from plimsoll.engine.cross_compile import CrossCompiler
from plimsoll.planned import Plan
from plimsoll.planner.chips import chip
from plimsoll.recipes.saved import to_dict
from plimsoll.recipes.text.recipe import Text
from plimsoll.types import Precision

RECIPE = Text(dataset_id="there-is-no-such/text", width=16, layers=2, heads=2, vocab_size=300, seq_len=16, batch_size=4)


def analysed(precision: Precision):
    plan = Plan(
        chip="rtx4090",
        micro_batch=4,
        accumulation=1,
        remat="none",
        loss_chunk=0,
        precision=precision,
        prefetch=0,
        async_save=False,
    )
    about = {"recipe": to_dict(RECIPE), "steps": 10, "chip": dataclasses.asdict(chip("rtx4090")), "compiled": False}
    return CrossCompiler(about).analyse(plan)


@pytest.mark.parametrize("precision", [one for one in typing.get_args(Precision) if one != "float32"])
def test_every_precision_of_a_card_is_answered_on_a_machine_without_it(precision):
    """A CPU refuses TF32, and the arithmetic of a card's step is counted on one."""
    assert analysed(precision).flops == analysed("float32").flops > 0
