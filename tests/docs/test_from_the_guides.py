"""Every plimsoll command on a page of the docs can be typed: it is parsed here, and not run."""

import re
import shlex
from pathlib import Path

import pytest

from plimsoll.cli.ladder import LadderOptions
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.options import PlanOptions, TrainOptions
from plimsoll.cli.parse import parse, take_recipe

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs/from-the-guides.md"
PAGES = [
    GUIDES,
    ROOT / "README.md",
    ROOT / "docs/stories.md",
    ROOT / "docs/memory.md",
    ROOT / "docs/levers.md",
    ROOT / "docs/chips.md",
    ROOT / "docs/your-own.md",
    ROOT / "CONTRIBUTING.md",
]
OPTIONS = {"plan": PlanOptions, "train": TrainOptions, "ladder": LadderOptions}


def commands(page: Path) -> list[list[str]]:
    """What follows `plimsoll` in code blocks and between backticks, in order."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`([^`\n]+)`", prose)
    words = [shlex.split(line, comments=True) for line in lines if line.lstrip().startswith("plimsoll ")]
    return [rest for _, *rest in words]


FOUND = [(page.name, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), FOUND, ids=[" ".join([page, *words]) for page, words in FOUND])
def test_every_command_in_the_docs_parses(page, words, monkeypatch):
    monkeypatch.chdir(ROOT)  # recipe files are named from there
    name, *rest = words
    assert name in COMMANDS or name.startswith("-")
    if name in OPTIONS and rest:  # the bare name is a mention, not a command
        _, recipe, rest = take_recipe(rest, command=name)
        parse(OPTIONS[name], rest, program=f"plimsoll {name}", recipe=recipe)


def test_the_guide_is_translated_command_by_command():
    assert sum(page == GUIDES.name for page, _ in FOUND) >= 20


@pytest.mark.parametrize(
    ("flags", "batch", "numerics"),
    [
        ("--batch-size 16 --gradient-accumulation-steps 4", 64, "mixed"),
        ("--use-mixed-precision", 32, "mixed"),
        ("--no-mixed-precision", 32, "exact"),
    ],
)
def test_the_guides_flags_keep_their_meaning(flags, batch, numerics):
    _, recipe, _ = take_recipe(["stories"], command="train")
    options = parse(TrainOptions, flags.split(), program="plimsoll train", recipe=recipe)
    assert (options.recipe.effective_batch, options.levers.numerics) == (batch, numerics)


def test_the_guides_eight_bit_flag_pins_the_optimizers_state():
    _, recipe, _ = take_recipe(["stories"], command="train")
    options = parse(TrainOptions, ["--use-8bit-optimizer"], program="plimsoll train", recipe=recipe)
    assert options.levers.pins() == {"optimizer_bits": 8}
