"""A run whose slots are in the middle of their puzzles is killed, and ends at the same bits: carry, table, average."""

import json
import shutil
import signal
import sys

import pytest

from once import made_once
from plimsoll.errors import RecipeError
from plimsoll.inference.evaluate import evaluate
from plimsoll.training.checkpoints import read_leaves
from puzzle_files import write_split
from small_runs import Runs, checkpoint_steps, newest_checkpoint, newest_fingerprint, rows

STEPS = 40


class PuzzleRuns(Runs):
    def __init__(self, tmp_path_factory):
        super().__init__(tmp_path_factory, name="puzzles")
        self.data = made_once(tmp_path_factory, "data-of-puzzles", self._write)

    @staticmethod
    def _write(folder):
        for split, seed in (("train", 0), ("test", 1)):
            write_split(folder / split, groups=[[1, 2]] * 10, seq_len=9, identifiers=20, seed=seed)

    def command(self, run, *options):
        words = f"""
            --data {self.data} --seq-len 9 --vocab-size 9 --identifiers 20 --width 16 --heads 2 --layers 1
            --high-cycles 1 --low-cycles 1 --puzzle-positions 1 --halt-max-steps 5 --halt-exploration 0.2
            --batch-size 4 --steps {STEPS} --save-every 4 --eval-every 20 --warmup-steps 2
            --memory 900MiB --micro-batch 2 --remat none --precision float32 --prefetch 1 --log-every 1 --quiet
        """.split()
        command = [sys.executable, "-m", "plimsoll.cli.main", "train", "sudoku-mlp", *words]
        return [*command, "--run", str(run), *options]


@pytest.fixture(scope="module")
def puzzle_runs(tmp_path_factory):
    return PuzzleRuns(tmp_path_factory)


@pytest.fixture(scope="module")
def uninterrupted(puzzle_runs):
    return puzzle_runs.trained()


@pytest.mark.slow
def test_a_killed_run_ends_at_the_same_bits(puzzle_runs, uninterrupted):
    run = puzzle_runs.prepared()
    killed = puzzle_runs.run_until(run, lambda run: checkpoint_steps(run)[:1] >= [4])
    assert killed.returncode == -signal.SIGKILL
    left = checkpoint_steps(run)[0]
    assert left < STEPS
    saved = dict(read_leaves(newest_checkpoint(run)))
    assert 0 < saved["['carry']['steps']"].max() < 5  # in the middle of puzzles
    again = puzzle_runs.run(run)
    assert again.returncode == 0, again.stderr
    assert json.loads((run / "ledger.json").read_text())["resumed_from_step"] == left
    assert newest_fingerprint(run) == newest_fingerprint(uninterrupted)
    assert [(row["step"], row["loss"]) for row in rows(run) if "loss" in row] == [
        (row["step"], row["loss"]) for row in rows(uninterrupted) if "loss" in row
    ]


@pytest.mark.slow
def test_the_ledger_has_the_carry_as_a_component_to_the_byte(uninterrupted):
    components = json.loads((uninterrupted / "ledger.json").read_text())["components"]
    saved = newest_checkpoint(uninterrupted)
    carried = sum(leaf.nbytes for _, leaf in read_leaves(saved, only="['carry']"))
    assert components["carry"]["measured"] == carried


@pytest.mark.slow
def test_the_weights_as_they_were_trained_are_evaluated_beside_their_average(uninterrupted, tmp_path):
    found = evaluate({"run": str(uninterrupted), "step": "last", "raw": True})
    without = tmp_path / "without"
    shutil.copytree(uninterrupted, without)
    recipe = json.loads((without / "recipe.json").read_text())
    recipe["fields"]["ema_decay"] = 0.0
    (without / "recipe.json").write_text(json.dumps(recipe))
    expected = evaluate({"run": str(without), "step": "last"})
    assert found["raw"] == {name: pytest.approx(expected[name], rel=1e-6) for name in found["raw"]}
    assert found["raw"].keys() == expected.keys() - {"run", "step", "weight"}
    assert found["raw"]["loss"] != pytest.approx(found["loss"], rel=1e-4)
    with pytest.raises(RecipeError, match="without keeps none"):
        evaluate({"run": str(without), "step": "last", "raw": True})
