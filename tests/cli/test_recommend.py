"""Recommendation from the command line: trained, evaluated beside the baselines, and asked what comes next."""

import json
import shlex
import shutil

import pytest

from commands import called, plimsoll, workers_here
from interaction_files import write_random
from once import made_once
from plimsoll.api.run import load
from plimsoll.errors import PlimsollError
from plimsoll.files.run_folder import RunFolder
from plimsoll.inference.trained import Trained
from plimsoll.recipes.recommend.rank import next_of_users
from plimsoll.recipes.recommend.ranking_tables import recommendation_tables
from plimsoll.training.checkpoints import FROZEN, read_leaves
from pretrained_folders import LLAMA, write
from small_runs import best_evaluation, checkpoint_steps, newest_checkpoint, newest_fingerprint

PINNED = shlex.split("--micro-batch 16 --remat none --loss-chunk 0 --precision float32")
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


def test_the_ledger_has_no_moments_of_what_is_frozen(trained):
    assert json.loads((trained / "run/plan.json").read_text())["plan"]["frozen_bits"] == 16
    held = {
        name: part["measured"]
        for name, part in json.loads((trained / "run/ledger.json").read_text())["components"].items()
    }
    frozen = 2 * LLAMA.layers * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 72)  # kernels, in 16 bits
    learned = held["parameters"] - frozen
    assert 0 < learned < frozen
    assert held["optimizer"] < 2.1 * learned


def test_a_checkpoint_holds_nothing_of_the_frozen_model(trained):
    paths = [path for path, _ in read_leaves(newest_checkpoint(trained / "run"))]
    assert any(path.startswith("['params']['trainable']") for path in paths)
    assert not any(path.startswith(FROZEN) for path in paths)


@pytest.mark.by_hand
def test_a_run_that_was_stopped_ends_at_the_same_bits(trained, tmp_path):
    """It reads the frozen model and the clusters again, which the checkpoint does not have."""
    for name in ("model", "data"):
        shutil.copytree(trained / name, tmp_path / name)
    stopped = tuned(tmp_path, "--max-steps", "3", "--plan", str(trained / "run/plan.json"))
    assert stopped.returncode == 0, stopped.stderr
    assert checkpoint_steps(tmp_path / "run")[0] == 3
    went_on = tuned(tmp_path)
    assert went_on.returncode == 0, went_on.stderr
    assert newest_fingerprint(tmp_path / "run") == newest_fingerprint(trained / "run")


def test_the_best_checkpoint_is_that_of_the_highest_ndcg(trained):
    rows = [json.loads(line) for line in (trained / "run/metrics.jsonl").read_text().splitlines()]
    found = {row["step"]: row["validation_ndcg@10"] for row in rows if "validation_ndcg@10" in row}
    assert found.keys() == {2, 4, 6}
    best = best_evaluation(trained / "run", "ndcg@10")
    assert best.score == max(found.values()) == found[best.step]
    assert RunFolder(trained / "run").checkpoint(best.step).exists()


def test_an_evaluation_has_both_splits_and_the_baselines_beside_them(trained):
    done = called("evaluate", "run", "--json", cwd=trained)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for split in ("validation", "test"):
        names = {f"{measure}@{cut}" for measure in ("hr", "ndcg") for cut in (1, 5, 10, 20)}
        assert found[split].keys() == names | {"mrr", "users"}
        assert found[split]["users"] == 60
        assert found[split]["hr@20"] == 1  # of 20 items, less those already seen
        assert found["model"][split].keys() == found[split].keys()
        assert found["model"][split] != found[split]
        assert found["baselines"][split].keys() == {"popularity", "item_knn", "item_knn_decayed", "item_knn_markov"}
    seen = json.loads(called("evaluate", "run", "--json", "--keep-seen", cwd=trained).stdout)
    assert seen["test"]["mrr"] < found["test"]["mrr"]
    assert "item_knn_markov" in called("evaluate", "run", cwd=trained).stdout


def test_raw_weights_are_judged_beside_their_average(trained):
    done = called("evaluate", "run", "--raw", "--step", "last", "--json", cwd=trained)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["raw"].keys() == {"validation", "test"}
    assert found["raw"]["test"].keys() == found["test"].keys()
    assert found["raw"] != found["model"]
    assert "its raw weights" in recommendation_tables(found)


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
    said = called("rank", "run", "--history", "112,118", "--top", "2", cwd=trained).stdout
    assert "after 112, 118" in said
    everything = json.loads(
        called("rank", "run", "--history", "112", "--top", "99", "--keep-seen", "--json", cwd=trained).stdout
    )
    assert len(everything["items"]) == 20
    assert sum(one["probability"] for one in everything["items"]) == pytest.approx(1, rel=1e-4)


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


def test_the_items_that_a_report_shows_stand_where_the_evaluation_ranks_them(trained):
    evaluated = json.loads(called("evaluate", "run", "--json", cwd=trained).stdout)["test"]
    users = next_of_users(Trained(str(trained / "run"), step="best"), users=60, top=20)
    assert len(users) == 60
    assert sum(1 / user["place"] for user in users) / 60 == pytest.approx(evaluated["mrr"], rel=1e-6)
    for user in users:
        assert user["items"][user["place"] - 1]["id"] == user["taken"]["id"]
        assert not {one["id"] for one in user["history"]} - {user["taken"]["id"]} & {one["id"] for one in user["items"]}


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
