"""Every plimsoll command on a page of the docs can be typed: it is parsed here, and not run."""

import dataclasses
import shlex
from itertools import takewhile

import pytest

from interaction_files import write_small
from packed_files import write_packed
from page_commands import PAGES, ROOT, commands
from plimsoll.cli.help import Page
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.options import LadderOptions, PlanOptions, TrainOptions
from plimsoll.cli.parse import parse, parse_with_recipe, values_typed
from plimsoll.cli.prepare import page_of
from plimsoll.cli.report import ReportOptions
from plimsoll.cli.verbs import USES, rows_of_pretrained, rows_of_run
from plimsoll.errors import RecipeError
from plimsoll.recipes import registered
from plimsoll.recipes.registered import preparations
from pretrained_folders import LLAMA, write
from puzzle_files import write_split
from recipe_packages import installed_into

OPTIONS = {"plan": PlanOptions, "train": TrainOptions, "ladder": LadderOptions}
SETS = {"data/sudoku-4x4": (16, 6), "data/sudoku": (81, 11)}
"""Folders of puzzles that pages name: tokens of a puzzle, and of the vocabulary."""


PREPARED = [preparation.example for preparation in preparations().values()]
SHOWN = [*(command.example for command in COMMANDS.values() if not command.takes_recipe), *PREPARED]
FOUND = {tuple(words): page.name for page in PAGES for words in commands(page)}
FOUND |= {tuple(shlex.split(text)[1:]): "help" for text in SHOWN}
"""Commands, each once, to the last place that has it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the commands are typed: recipe files are named from the checkout, and data sets are there already."""
    folder = tmp_path_factory.mktemp("reader")
    for part in ("docs", "benchmarks"):
        (folder / part).symlink_to(ROOT / part)
    write_small(folder / "data", [[1, 2, 3, 4], [2, 3, 1]])
    for model in ("Llama-3.2-1B", "gemma-2b"):
        write(folder / model, LLAMA)
    for name, (seq_len, vocab_size) in SETS.items():
        for split in ("train", "test"):
            write_split(folder / name / split, groups=[[1]], seq_len=seq_len, vocab_size=vocab_size, identifiers=1)
    write_packed(folder / "packed", [1, 2, 256] * 10)
    installed_into(folder / "site")
    return folder


@pytest.fixture
def package(place, monkeypatch):
    """The package of your-own.md is installed."""
    monkeypatch.syspath_prepend(place / "site")
    registered.installed.cache_clear()
    yield
    registered.installed.cache_clear()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("words", FOUND, ids=[" ".join([page, *words]) for words, page in FOUND.items()])
def test_every_command_in_the_docs_parses(words, place, monkeypatch):
    monkeypatch.chdir(place)
    name, *rest = words
    assert name in COMMANDS or name.startswith("-")
    if {"-h", "--help"} & {*rest}:
        with pytest.raises(SystemExit) as stopped:
            require_parsed(name, rest)
        assert stopped.value.code == 0
    elif rest:  # the bare name is a mention, not a command
        require_parsed(name, rest)


def require_parsed(name, rest):
    """Raises what would be said of the options."""
    if name in OPTIONS:
        recipes = list(takewhile(lambda word: not word.startswith("-"), rest))
        for typed in [[recipe, *rest[len(recipes) :]] for recipe in recipes] or [rest]:
            parse_with_recipe(OPTIONS[name], typed, command=name)
    elif name == "report":
        parse(ReportOptions, rest, command=name)
    elif name in USES:
        rows = rows_of_pretrained(name) if "--pretrained" in rest else rows_of_run(name)
        values_typed(Page(program=f"plimsoll {name}", options=rows, example=""), rest)
    elif name == "prepare" and rest[0] in preparations() and rest[1:]:  # the bare name is a mention
        values_typed(page_of(rest[0], preparations()[rest[0]]), rest[1:])


def test_the_guide_is_translated_command_by_command():
    assert len(commands(ROOT / "docs/from-the-guides.md")) >= 20


def parsed(flags):
    return parse_with_recipe(TrainOptions, ["stories", *flags.split()], command="train")


@pytest.mark.parametrize(
    ("flags", "batch", "numerics"),
    [
        ("--batch-size 16 --gradient-accumulation-steps 4", 64, "mixed"),
        ("--use-mixed-precision", 32, "mixed"),
        ("--no-mixed-precision", 32, "exact"),
    ],
)
def test_the_guides_flags_keep_their_meaning(flags, batch, numerics):
    typed = parsed(flags)
    assert (typed.recipe.effective_batch, typed.options.numerics) == (batch, numerics)


def test_the_guides_eight_bit_flag_pins_the_optimizers_state():
    assert parsed("--use-8bit-optimizer").pins == {"optimizer_bits": 8}


@pytest.mark.parametrize(
    "flags",
    [
        "--checkpoint-dir runs/x",
        "--checkpoint_dir=runs/x",
        "--checkpoint-dir=runs/x --resume",
        "--resume --output_dir runs/x",
    ],
)
def test_the_folder_of_checkpoints_is_the_run_and_resuming_is_what_happens_anyway(flags):
    typed = parsed(flags)
    assert dataclasses.replace(typed.options, run=None) == parsed("").options
    assert (typed.recipe, typed.options.run) == (parsed("").recipe, "runs/x")


@pytest.mark.parametrize("flags", ["--resume step_1000.pt", "--resume=step_1000.pt"])
def test_a_checkpoint_that_is_named_is_not_silently_left_out(flags):
    with pytest.raises(RecipeError, match=r"got 'step_1000\.pt'"):
        parsed(flags)


def test_a_value_with_underscores_and_an_equals_sign_stays_what_it_is():
    assert parsed("--dataset-id my_texts=1").recipe.options["dataset_id"] == "my_texts=1"
