"""Recommendation from the command line: trained, evaluated beside the baselines, and asked what comes next."""

import json
import shlex

import pytest

from commands import called, plimsoll, workers_here
from interaction_files import write_random
from once import made_once
from plimsoll.api.run import load
from plimsoll.errors import PlimsollError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.recommend.tables import recommendation_tables
from plimsoll.training.checkpoints import FROZEN, read_leaves
from pretrained_folders import LLAMA, write
from small_runs import best_evaluation, newest_checkpoint

PINNED = shlex.split("--side-layers 1 --micro-batch 16 --remat none --loss-chunk 0 --precision float32")
"""So that little is compiled."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Of a frozen model, in 16 bits; ids of the file are 101 to 120."""
    return made_once(tmp_path_factory, "run-of-recommend", train)


def train(folder):
    write_random(folder / "data", users=60, items=20, shortest=4)
    write(folder / "model", LLAMA)
    done = tuned(folder)
    assert done.returncode == 0, done.stderr
    began = "the run began with weights that were given to it"
    assert f"{began} (--data, --pretrained)" in done.stdout


def tuned(folder, *more):
    options = ["--frozen-bits", "16", "--seq-len", "8", "--batch-size", "16", "--steps", "6", "--memory", "2GiB"]
    options += ["--item-embedding-dim", "4", "--adapter-inner", "8", "--eval-every", "2", "--quiet", *PINNED]
    options += ["--ema-decay", "0.5", "--learning-rate", "0.05"]  # so that the average ranks otherwise
    given = ["--data", "data", "--pretrained", "model", *options, *more]
    return plimsoll("train", "recommend", *given, "--run", "run", cwd=folder)


def test_there_are_no_moments_of_what_is_frozen_and_a_checkpoint_holds_nothing_of_it(trained):
    assert json.loads((trained / "run/plan.json").read_text())["plan"]["frozen_bits"] == 16
    held = {
        name: part["measured"]
        for name, part in json.loads((trained / "run/ledger.json").read_text())["components"].items()
    }
    frozen = 2 * LLAMA.layers * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 72)  # kernels, in 16 bits
    learned = held["parameters"] - frozen
    assert 0 < learned < frozen
    assert held["optimizer"] < 2.1 * learned
    paths = [path for path, _ in read_leaves(newest_checkpoint(trained / "run"))]
    assert any(path.startswith("['params']['trainable']") for path in paths)
    assert not any(path.startswith(FROZEN) for path in paths)


def test_the_best_checkpoint_is_that_of_the_highest_ndcg(trained):
    rows = [json.loads(line) for line in (trained / "run/metrics.jsonl").read_text().splitlines()]
    found = {row["step"]: row["validation_ndcg@10"] for row in rows if "validation_ndcg@10" in row}
    assert found.keys() == {2, 4, 6}
    best = best_evaluation(trained / "run", "ndcg@10")
    assert best.score == max(found.values()) == found[best.step]
    assert RunFolder(trained / "run").checkpoint(best.step).exists()


def test_an_evaluation_has_both_splits_the_baselines_and_the_raw_weights_beside_them(trained):
    done = called("evaluate", "run", "--raw", "--json", cwd=trained)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for split in ("validation", "test"):
        names = {f"{measure}@{cut}" for measure in ("hr", "ndcg") for cut in (1, 5, 10, 20)}
        assert found[split].keys() == names | {"mrr", "users"}
        assert found[split]["users"] == 60
        assert found[split]["hr@20"] == 1  # of 20 items, less those already seen
        assert found["model"][split].keys() == found["raw"][split].keys() == found[split].keys()
        assert found["model"][split] != found[split]
        assert found["baselines"][split].keys() == {"popularity", "item_knn", "item_knn_decayed", "item_knn_markov"}
    assert found["raw"] != found["model"]
    table = recommendation_tables(found)
    assert "item_knn_markov" in table
    assert "its raw weights" in table


@pytest.mark.slow
def test_a_history_of_the_files_own_names_is_ranked(trained):
    done = plimsoll("rank", "run", "--history", "112, 118,101", "--top", "5", "--json", cwd=trained)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["original"] for one in found["history"]] == ["112", "118", "101"]
    assert len({one["id"] for one in found["items"]} - {0, 12, 18, 1}) == 5
    scores = [one["score"] for one in found["items"]]
    assert scores == sorted(scores, reverse=True)
    assert 0 < sum(one["probability"] for one in found["items"]) < 1
    whole = json.loads(called("rank", "run", "--history", "112,118,101", "--top", "99", "--json", cwd=trained).stdout)
    assert sum(one["probability"] for one in whole["items"]) == pytest.approx(1, rel=1e-4)  # of what was not taken


def test_python_ranks_as_the_command_does(trained, monkeypatch):
    said = called("rank", "run", "--history", "112,118", "--top", "2", "--json", cwd=trained).stdout
    monkeypatch.chdir(trained)  # its data set is named from there
    with workers_here():
        found = load("run").rank([112, "118"], top=2)
    assert found | {"run": "run"} == json.loads(said)
    with pytest.raises(PlimsollError, match="--top must be 1 or more, got 0"):
        load("run").rank([112], top=0)


def test_its_report_ranks_items_for_users_of_the_test_split(trained, tmp_path):
    page = tmp_path / "page.html"
    done = called("report", "run", "--out", page, cwd=trained)
    assert done.returncode == 0, done.stderr
    page = page.read_text("utf-8")
    assert all(f"What comes next, user {number} of the test split" in page for number in (1, 2, 3))
    assert "what it ranks:" not in page  # nothing was left out
    assert page.count("Really taken then: 1") == 6  # of three users, as a caption and for who cannot see the chart


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("112,999,x", "--history has 2 items like '999', which"),
        ("112,,118", "--history has 1 items like ''"),
    ],
)
def test_what_is_no_item_is_said_before_anything_is_read(trained, history, words):
    done = called("rank", "run", "--history", history, cwd=trained)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.slow
def test_a_shape_is_planned_without_weights_and_data(tmp_path):
    options = ["--preset", "llama-3.2-1b", "--chip", "l4", "--frozen-bits", "4", "--micro-batch", "1", "--json"]
    done = plimsoll("plan", "recommend", *options, "--remat", "block", "--loss-chunk", "32", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["parameters"] == pytest.approx(973.2e6 + 3261 * 512 + 512 * 1536 + 1536 * 2048, rel=0.01)
    assert found["components"]["parameters"] < 0.7 * 2**30
