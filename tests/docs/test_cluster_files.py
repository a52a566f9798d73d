"""Files for clusters in docs/examples: what they start is a command of today. notes, "Several processes", says by
which schemas the rest was checked."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from plimsoll.api.cluster import Membership, membership
from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse_with_recipe
from plimsoll.planner.chips import chip

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"


def started(path):
    """The command in the file, with 0 and 2 for what a machine fills in."""
    content = yaml.safe_load(path.read_text())
    if content.get("kind") == "JobSet":
        (container,) = content["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
        text = container["args"][0]
    else:
        text = content["run"]
    text = re.sub(r'"\$\(.*\):', '"there:', text.replace("\\\n", " "))
    text = re.sub(r'"?\$\w*NUM\w*"?', "2", text)
    return shlex.split(re.sub(r'"?\$\w+"?', "0", text))


@pytest.mark.parametrize("name", ["jobset.yaml", "skypilot.yaml"])
def test_it_starts_a_command_of_today_on_as_many_machines_as_the_chip_has(name):
    first, program, command, *words = started(EXAMPLES / name)
    assert [first, program, command] == ["exec", "plimsoll", "train"]
    options = parse_with_recipe(TrainOptions, words, command="train").options
    assert (options.processes, options.process) == (2, 0)
    assert chip(options.chip).hosts == options.processes


def test_the_script_of_a_tpu_starts_a_command_of_today_for_the_chip_that_is_requested():
    (spec,) = json.loads((EXAMPLES / "cloud-tpu.json").read_text())["tpu"]["nodeSpec"]
    *_, last = spec["node"]["metadata"]["startup-script"].splitlines()
    first, program, command, *words = shlex.split(last)
    assert [first, Path(program).name, command] == ["exec", "plimsoll", "train"]
    options = parse_with_recipe(TrainOptions, words, command="train").options
    assert options.chip == f"tpu-{spec['node']['acceleratorType']}"
    # JAX asks the machine for its place among the others.
    assert membership(None, None, None, chip=options.chip, variables={}) == Membership()
