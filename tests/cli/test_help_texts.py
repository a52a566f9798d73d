"""What help says: within 80 columns, every option with a text and its default, and an example that can be typed."""

import contextlib
import io
import re
import shlex
import subprocess

import pytest

from plimsoll.cli.completion import OTHERS, completion
from plimsoll.cli.examples import EXAMPLES, OF_PRETRAINED, example
from plimsoll.cli.main import COMMANDS, main, usage
from plimsoll.cli.prepare import every_options
from plimsoll.errors import RecipeError
from plimsoll.recipes.registry import PRESETS

ASKED = [
    *([name] for name in COMMANDS),
    *(["train", preset] for preset in PRESETS),
    *(["prepare", what] for what in every_options()),
    *([name, "--pretrained"] for name in OF_PRETRAINED),
]
NO_TEXT = re.compile(r"(?:--\S+,? ?)+(?:\{\S+\}|[A-Z|\[\]{}.]+| )*\((default|required)")
UNITS = {
    "--memory": "MiB",
    "--host-memory": "host",
    "--max-minutes": "minutes",
    "--log-every": "Steps",
    "--save-every": "Steps",
    "--eval-every": "Steps",
    "--seq-len": "Tokens",
    "--warmup-steps": "steps",
    "--loss-chunk": "Tokens",
    "--optimizer-bits": "number",
}
"""A word that each of these says its unit with."""


def said(words, capsys):
    """Without a terminal tyro draws no boxes; in COLUMNS columns."""
    with contextlib.suppress(SystemExit):
        assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def options(text):
    """Each option's flags, text and default, on one line."""
    found = []
    for line in text.splitlines():
        inner = line.strip("│| ")
        if re.match(r"[ │|]{1,3}(-h, )?--[a-z]", line):
            found.append(inner)
        elif found and line[:1] in " │|":
            found[-1] += f" {inner}"
    return found


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_help_fits_and_says_defaults(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = said(words, capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "Example: plimsoll" in text
    found = options(text)
    assert found or words == ["prepare"]
    for option in found:
        assert not NO_TEXT.match(option), option
        assert option.startswith("-h") or "(default: " in option or "(required)" in option, option


def test_options_in_units_name_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = {option.split()[0]: option for option in options(said(["plan", "stories"], capsys))}
    texts |= {option.split()[0]: option for option in options(said(["train", "stories"], capsys))}
    assert [flag for flag, unit in UNITS.items() if unit not in texts[flag]] == []


@pytest.mark.parametrize("columns", ["40", "200"])
def test_help_can_be_read_in_other_terminals(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "--temperature" in said(["sample"], capsys)


def test_the_usage_fits():
    assert max(map(len, usage().splitlines())) <= 80


def test_every_command_has_its_example():
    named = {name for example in EXAMPLES for name in [example.split()[0]]}
    assert named == set(COMMANDS)
    for what in every_options():
        assert example(f"plimsoll prepare {what}").startswith(f"plimsoll prepare {what} ")


@pytest.fixture(scope="module")
def script():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert completion(["bash"]) == 0
    return out.getvalue()


TYPED = {
    "tr": {"train"},
    "train sudoku-": {"sudoku-4x4", "sudoku-6x6", "sudoku-attention", "sudoku-mlp"},
    "train stories --ba": {"--batch-size"},
    "prepare rec": {"rechunk", "recommend"},
    "evaluate --ste": {"--step"},
}


@pytest.mark.parametrize("words", TYPED)
def test_bash_completes(words, script, tmp_path):
    file = tmp_path / "plimsoll"
    file.write_text(script)
    asked = ["plimsoll", *words.split()]
    program = (
        f"source {shlex.quote(str(file))}; COMP_WORDS=({' '.join(asked)}); COMP_CWORD={len(asked) - 1};"
        f" COMP_LINE={shlex.quote(' '.join(asked))}; COMP_POINT=${{#COMP_LINE}}; _tyro_plimsoll;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert set(done.stdout.split("\n")) - {""} == TYPED[words]


def test_completion_knows_every_command(script):
    assert {"plan", "train", "ladder", "prepare", *OTHERS} == set(COMMANDS)


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "more"]])
def test_another_shell_is_refused(words):
    with pytest.raises(RecipeError, match="takes a shell, one of bash, zsh, got"):
        completion(words)
