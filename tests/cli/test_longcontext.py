"""Long contexts as a user has them: prepare, plan, train, evaluate, sample."""

import json
import shlex
import shutil

import pytest

from commands import answer, plimsoll
from once import made_once
from plimsoll.cli.main import main
from plimsoll.recipes.longcontext.tables import evaluation
from plimsoll.report.metrics import read_rows

TRAIN = shlex.split(
    "--width 16 --layers 2 --states 4 --seq-len 64 --attention-every 2 --attention-window 16 --batch-size 4 --steps 6"
    " --micro-batch 4 --remat none --loss-chunk 64 --attention-chunk 0 --precision float32 --prefetch 0"
    " --async-save False --quiet"
)
"""Every lever pinned, so that little is compiled."""


@pytest.fixture(scope="module")
def packed(text_file, tmp_path_factory):
    def prepare(folder):
        words = ["--dataset-id", str(text_file), "--vocab-size", "300", "--out", str(folder / "packed")]
        assert main(["prepare", "longcontext", *words]) == 0

    return made_once(tmp_path_factory, "text-of-longcontext", prepare) / "packed"


@pytest.fixture(scope="module")
def trained(packed, tmp_path_factory):
    def train(folder):
        done = plimsoll("train", "longcontext", "--data", packed, *TRAIN, "--eval-every", 3, "--run", folder / "run")
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "run-of-longcontext", train) / "run"


def test_evaluating_tells_the_loss_by_position(trained):
    found = answer("evaluate", trained, "--step", "last")
    logged = [row for row in read_rows(trained / "metrics.jsonl") if "validation_loss" in row][-1]
    assert found["loss"] == logged["validation_loss"]
    table = found["loss_by_position"]
    doubling = ["0 to 0", "1 to 1", "2 to 3", "4 to 7", "8 to 15", "16 to 31"]
    assert list(table) == [*doubling, "32 to 39", "40 to 47", "48 to 55", "56 to 63"]
    lengths = [1, 1, 2, 4, 8, 16, 8, 8, 8, 8]
    mean = sum(loss * length for loss, length in zip(table.values(), lengths, strict=True)) / 64
    assert mean == pytest.approx(found["loss"], rel=1e-5)
    assert f"{table['56 to 63']:.4f}" in evaluation(found)


def test_text_is_written_from_a_prompt_longer_than_a_window(trained):
    words = ["sample", trained, "--prompt", "the cat " * 60, "--tokens", 12, "--temperature", 0.5]
    found = answer(*words)
    assert 1 <= found["tokens"] <= 12
    assert (trained / "tokenizer.json").is_file()


def test_a_run_is_sampled_where_its_packed_folder_is_gone_and_not_exported(trained, tmp_path, capsys):
    moved = shutil.copytree(trained, tmp_path / "moved")
    recipe = json.loads((moved / "recipe.json").read_text())
    recipe["fields"]["data"] = str(tmp_path / "gone")
    (moved / "recipe.json").write_text(json.dumps(recipe))
    assert answer("sample", moved, "--tokens", 3)["tokens"] >= 1
    assert main(["export", str(moved), "--merged", str(tmp_path / "out")]) == 2
    assert "whose model transformers does not know" in capsys.readouterr().err


def test_a_preset_may_be_named_beside_its_recipe(packed):
    found = answer("plan", "longcontext", "--preset", "nano", "--data", packed, *TRAIN[:-1], "--memory", "1GiB")
    assert found["recipe"] == "longcontext-nano"
