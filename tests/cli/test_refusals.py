# ruff: noqa: E501 (a case is a line)
"""Bad input is answered with one paragraph on standard error and exit code 2: what was asked, the facts, what to do."""

import json

import pytest

from commands import TINY, plimsoll
from plimsoll.api import plan as api_plan
from plimsoll.api import train as preparing
from plimsoll.api.launch import train
from plimsoll.cli.main import main
from plimsoll.errors import RecipeError
from plimsoll.processes import handover


@pytest.fixture(autouse=True)
def no_exec(monkeypatch):
    def refuse(*_):
        raise AssertionError("training would have started")

    monkeypatch.setattr(handover, "become", refuse)


def require_one_paragraph(error, *parts):
    text = "".join(line for line in error.splitlines(keepends=True) if not line.startswith("  compiling"))
    paragraph = text[text.index("error: ") :]
    assert "Traceback" not in error
    assert "\n\n" not in paragraph.strip()
    assert not set("╭│╰─") & set(paragraph)
    for part in parts:
        assert part in paragraph


def refused(capsys, *arguments):
    assert main([str(word) for word in arguments]) == 2
    said = capsys.readouterr()
    return said.err


WORDS = {
    "no such command": (["trian"], ["no command 'trian'", "did you mean train?"]),
    "no recipe": (["plan"], ["needs a recipe first: stories, code"]),
    "no such recipe": (["train", "storeis"], ["no recipe called 'storeis': did you mean stories? `plimsoll recipes` lists stories, code"]),
    "a size": (["plan", "code", "--memory", "2GX"], ["the size '2GX' cannot be read", "768MiB or 2GB"]),
    "a size of nothing": (["plan", "code", "--memory", "0G"], ["--memory 0G is 0 B, and no process is that small: give MiB or GiB, like 768MiB"]),
    "a size that is too small": (["plan", "code", "--memory", "4k"], ["--memory 4k is 4.0 KiB, and no process is that small: 4MiB?"]),
    "a size of the host": (["plan", "code", "--chip", "h100", "--host-memory", "8"], ["--host-memory 8 is 8 B, and no process is that small: 8MiB?"]),
    "a count": (["plan", "code", "--target-params", "1.5Q"], ["--target-params: the count '1.5Q'", "like 1.3M"]),
    "a time": (["train", "code", "--max-minutes", "soon"], ["the time 'soon'", "90s, 3min or 2h"]),
    "a whole number": (["plan", "code", "--batch-size", "many"], ["--batch-size takes a whole number, got 'many'", "`plimsoll plan code --help`"]),
    "an optional number": (["plan", "code", "--stride", "x"], ["--stride takes a whole number, got 'x';"]),
    "a number": (["sample", "runs/x", "--temperature", "hot"], ["--temperature takes a number, got 'hot'"]),
    "a choice": (["plan", "code", "--remat", "all"], ["--remat takes one of block, dots, none, offload, got 'all'"]),
    "a missing value": (["plan", "code", "--heads"], ["--heads needs a value after it"]),
    "a misspelt option": (["plan", "code", "--batchsize", "3"], ["no option --batchsize: did you mean --batch-size?"]),
    "an unknown option": (["plan", "code", "--xyzzy"], ["no option --xyzzy;"]),
    "a word too many": (["evaluate", "runs/x", "runs/y"], ["nothing more is expected", "'runs/y'"]),
    "an argument too few": (["evaluate"], ["plimsoll evaluate needs RUN, the folder of the run"]),
    "steps": (["plan", "code", "--steps", "-3"], ["--steps must be from 1 to 2,147,483,647, got -3"]),
    "a seed": (["plan", "code", "--seed", "-1"], ["--seed must be a whole number from 0 to 2^63 - 1, got -1"]),
    "an infinite rate": (["plan", "code", "--learning-rate", "inf"], ["--learning-rate must be above 0 and finite"]),
    "a huge vocabulary": (["plan", "code", "--vocab-size", "1B"], ["--vocab-size must be from 257", "got 1,000,000,000"]),
    "a stride with holes": (["plan", "code", "--stride", "1000"], ["--stride 1000 is longer than --seq-len", "never be read"]),
    "no data": (["plan", "stories", "--dataset-id", ""], ["--dataset-id is empty"]),
    "a size beside a shape": (["plan", "code", "--target-params", "300k", "--width", "64"], ["--target-params 300,000 beside a shape of --width 64", "leave one of the two out"]),
    "a picture of no kind": (["plan", "code", "--picture", "a.jpg"], ["written as .png or .svg, and 'a.jpg' is neither"]),
    "a picture nowhere": (["plan", "code", "--picture", "nowhere/a.png"], ["nowhere/a.png cannot be written, there is no folder nowhere:"]),
    "a picture that is a folder": (["plan", "code", "--picture", "b.svg"], ["b.svg cannot be written, it is a folder"]),
    "too much memory to count": (["plan", "code", "--memory", "1e400"], ["the size '1e400' is too large to be counted"]),
    "a negative lever": (["plan", "code", "--prefetch", "-1"], ["--prefetch cannot be -1"]),
    "no class of numbers": (["plan", "code", "--numerics", "rough"], ["--numerics takes one of compressed, exact, mixed"]),
    "no steps": (["train", "code", "--max-steps", "0"], ["--max-steps must be 1 or more, got 0"]),
    "no time": (["train", "code", "--max-minutes", "0"], ["--max-minutes must be above 0, got 0"]),
    "never logged": (["train", "code", "--log-every", "0"], ["--log-every must be 1 or more, got 0"]),
    "no tracker": (["train", "code", "--tracker", "mlflow"], ["--tracker mlflow needs the package mlflow", "pip install"]),
    "steps and epochs": (["plan", "code", "--epochs", "2", "--steps", "600"], ["--steps 600 and --epochs 2 both set the length"]),
    "half a shape": (["plan", "stories", "--width", "64"], ["--width, --layers and --heads", "all three"]),
    "a size too small": (["plan", "stories", "--target-params", "5k"], ["--target-params 5k is unreachable", "the minimum is 141,408 parameters", "at least 141408"]),
    "no such state": (["plan", "code", "--optimizer-bits", "4"], ["--optimizer-bits takes one of 16, 32, 8"]),
    "no tokenizer there": (["plan", "stories", "--tokenizer", "nope.json"], ["no tokenizer at nope.json"]),
    "evaluate no run": (["evaluate", "nowhere/at-all"], ["nowhere/at-all is not a run", "`plimsoll runs`"]),
    "sample no run": (["sample", "nowhere/at-all"], ["nowhere/at-all is not a run"]),
    "fingerprint no run": (["fingerprint", "nowhere/at-all"], ["nowhere/at-all is not a run"]),
    "no tokens": (["sample", "runs/x", "--tokens", "0"], ["--tokens must be 1 or more, got 0"]),
    "a cold model": (["sample", "runs/x", "--temperature", "-1"], ["--temperature must be 0 or more and finite, got -1"]),
    "no temperature": (["sample", "runs/x", "--temperature", "nan"], ["--temperature must be 0 or more and finite, got nan"]),
    "top of nothing": (["sample", "runs/x", "--top-k", "-1"], ["--top-k must be 0 or more, got -1"]),
    "runs of nothing": (["runs", "nowhere/at-all"], ["no folder 'nowhere/at-all'"]),
    "a text that is not here": (["plan", "stories", "--dataset-id", "/nowhere/at-all", "--chip", "h100"], ["no such path: '/nowhere/at-all' is no file or folder here", "Check the path."]),
    "examples that are not here": (["plan", "finetune", "--dataset-id", "nowhere/chats.json", "--chip", "h100"], ["no such path: 'nowhere/chats.json'", "Check the path."]),
    "inspect nothing": (["inspect", "/nowhere/at-all"], ["no such path: '/nowhere/at-all'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WORDS)
def test_words_that_make_no_sense_are_refused(capsys, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api_plan, "search", lambda *_: pytest.fail("it was planned first"))
    (tmp_path / "b.svg").mkdir()
    words, parts = WORDS[case]
    require_one_paragraph(refused(capsys, *words), *parts)


def test_a_plan_that_is_none_is_refused_before_data_is_prepared(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "prepare_data", lambda *_: pytest.fail("data was prepared first"))
    words = ["train", "code", "--plan", tmp_path / "nope.json", "--run", tmp_path / "run"]
    require_one_paragraph(refused(capsys, *words), "nope.json cannot be read", "or take a run's plan.json")


DATA = {
    "no such path": ("nope.txt", None, [], ["no such path", "nope.txt"]),
    "not text": ("noise.txt", bytes(range(256)) * 100, [], ["is not UTF-8 text", "iconv"]),
    "an unknown kind": ("a.pdf", b"%PDF", [], ["a.pdf is of no kind that is read"]),
    "empty": ("empty.txt", b"", [], ["holds no documents"]),
    "no such column": ("a.jsonl", b'{"story": "a"}\n', [], ["no column 'text'; it has: story", "--text-column"]),
    "too few tokens": ("small.txt", b"hello there", ["--epochs", "1"], ["3 tokens, 0 windows of 32", "the 4 of one batch", "Lower --batch-size"]),
    "less than a step": ("small.txt", b"".join(b"%d bells rang.\n\n" % n for n in range(999)), ["--epochs", "1e-9"], ["--epochs 1e-09 of the", "is less than one step of 4", "or more, or --steps"]),
}  # fmt: skip


@pytest.mark.parametrize(("there", "left"), [("", []), ("runs", ["runs"]), ("runs/a", ["runs", "runs/a"])])
def test_a_refused_start_leaves_no_folder_that_it_made(capsys, tmp_path, monkeypatch, there, left):
    monkeypatch.chdir(tmp_path)
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    words = ["train", "code", "--plan", "nope.json", "--run", "runs/a/b/x"]
    require_one_paragraph(refused(capsys, *words), "nope.json cannot be read")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == left


def test_a_refused_start_leaves_what_another_run_put_beside_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def meanwhile(*_):
        (tmp_path / "runs/a/other").mkdir()
        raise RecipeError("no plan")

    monkeypatch.setattr(preparing, "levers_of", meanwhile)
    refused(capsys, "train", "code", "--plan", "nope.json", "--run", "runs/a/b/x")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["runs", "runs/a", "runs/a/other"]


def test_a_folder_that_cannot_be_made_leaves_none_above_it(capsys, tmp_path):
    error = refused(capsys, "train", "code", "--run", tmp_path / "a" / "b" / ("x" * 300))
    require_one_paragraph(error, "cannot be made: File name too long. Name a folder you may write to")
    assert not (tmp_path / "a").exists()


def test_a_terminal_that_draws_boxes_gets_the_same_paragraph():
    done = plimsoll("plan", "code", "--batchsize", 3)
    expected = "error: there is no option --batchsize: did you mean --batch-size? `plimsoll plan code --help` lists the options"
    assert (done.returncode, done.stderr) == (2, expected + "\n")
    assert done.stdout == ""


@pytest.mark.parametrize("case", DATA)
def test_data_that_cannot_be_trained_on_is_refused(capsys, tmp_path, case):
    name, content, options, parts = DATA[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    without_steps = [word for at, word in enumerate(TINY) if "--steps" not in (word, TINY[at - 1])]
    shape = without_steps if options else TINY
    words = ["train", "stories", "--dataset-id", tmp_path / name, *shape, *options, "--run", tmp_path / "run"]
    require_one_paragraph(refused(capsys, *words), *parts)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(capsys, tmp_path):
    from plimsoll.data.text.opening import python_sources
    from plimsoll.data.text.tokenizer import train_byte_bpe

    train_byte_bpe(python_sources(max_examples=3), 320).save(tmp_path / "tokenizer.json")
    words = ["plan", "stories", "--tokenizer", tmp_path, "--vocab-size", 300]
    require_one_paragraph(refused(capsys, *words), "ids up to 319", "--vocab-size 300", "at least 320")


def test_a_micro_batch_that_does_not_divide_is_refused(capsys):
    words = ["plan", "code", "--micro-batch", 7]
    require_one_paragraph(refused(capsys, *words), "--micro-batch 7 does not divide", "64 examples", "a divisor")


@pytest.mark.slow
def test_a_budget_that_no_plan_fits_is_refused_with_the_floor(tiny_run, text_file):
    words = ["plan", "stories", "--dataset-id", text_file, *TINY, "--memory", "40MiB", "--json"]
    done = plimsoll(*words)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["fits"] is False
    assert found["budget_bytes"] == 40 * 2**20 < found["floor_bytes"]
    require_one_paragraph(done.stderr, "fits in 40.0 MiB", "smallest found: ", "you could: ", "--memory ")


def test_a_run_of_another_recipe_is_not_continued(tiny_run, tiny_command):
    command = tiny_command
    done = plimsoll(*command, "--run", tiny_run, "--learning-rate", "1e-2")
    assert done.returncode == 2
    require_one_paragraph(done.stderr, "--learning-rate is 0.0005 there and 0.01 here", "another --run")


def test_a_file_is_no_run_folder(capsys, text_file):
    words = ["train", "stories", "--dataset-id", text_file, *TINY, "--run", text_file]
    require_one_paragraph(refused(capsys, *words), f"--run {text_file} is a file")


def test_the_api_names_an_option_it_does_not_know():
    said = r"neither plimsoll\.train nor the recipe code has an option max_step: did you mean max_steps"
    with pytest.raises(RecipeError, match=said):
        train("code", max_step=3)
