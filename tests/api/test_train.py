"""What is said before a run trains."""

import pytest

from plimsoll.api import train
from plimsoll.engine.options import TrainOptions
from report_examples import PLANNED


@pytest.mark.parametrize("quiet", [True, False])
def test_a_lever_that_the_plan_of_the_run_overrules_is_named_with_quiet_too(quiet, capsys):
    said = []
    options = TrainOptions(pins={"micro_batch": PLANNED.plan.micro_batch + 1}, quiet=quiet)
    train._say_kept(PLANNED, options, said.append)
    said.append(capsys.readouterr().out)
    assert "--micro-batch" in "".join(said)

    train._say_kept(PLANNED, TrainOptions(pins={"micro_batch": PLANNED.plan.micro_batch}, quiet=quiet), said.append)
    assert capsys.readouterr().out == ""
