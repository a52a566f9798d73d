"""The options of every preset and their defaults, as `--help` prints them, are those of a golden file.

    PYTHONPATH=src python tests/contracts/test_option_defaults.py

writes the file anew, after a change that is meant. It maps an option to its defaults, and a default to the presets that
have it, "all" or their names; an option whose help names no default has "".
"""

import contextlib
import io
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from plimsoll.cli.main import main
from plimsoll.recipes.registered import PRESETS

GOLDEN = Path(__file__).with_name("option_defaults.json")

Defaults = dict[str, str]
"""An option to its default."""


def printed_defaults(preset: str) -> Defaults:
    """Returns the options that `plimsoll train PRESET --help` lists."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(["train", preset, "--help"])
    text = printed.getvalue()

    # An option begins a paragraph of its own, indented by two.
    paragraphs = re.split(r"\n(?=  --)", text)[1:]
    defaults = {}
    for paragraph in paragraphs:
        words = " ".join(paragraph.split("\n\n")[0].split())
        name = words.split()[0].rstrip(",")
        default = re.search(r"\(default: (.*?)\)(?: |$)", words)
        defaults[name] = default[1] if default else ""
    return defaults


def golden_defaults(preset: str, golden: dict[str, dict[str, str]]) -> Defaults:
    """Returns the options of a preset in the golden file."""
    return {
        option: default
        for option, presets_of in golden.items()
        for default, presets in presets_of.items()
        if preset in presets.split() or presets == "all"
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_options_and_defaults_are_the_golden_ones(preset):
    golden = json.loads(GOLDEN.read_text())
    anew = f"if that is meant: PYTHONPATH=src python {Path(__file__).name} writes it anew"
    assert printed_defaults(preset) == golden_defaults(preset, golden), anew


def record() -> None:
    """Writes the golden file."""
    golden = defaultdict(lambda: defaultdict(list))
    for preset in PRESETS:
        for option, default in printed_defaults(preset).items():
            golden[option][default].append(preset)

    def names(presets: list[str]) -> str:
        return "all" if len(presets) == len(PRESETS) else " ".join(presets)

    table = {
        option: {default: names(presets) for default, presets in defaults.items()}
        for option, defaults in golden.items()
    }
    GOLDEN.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
