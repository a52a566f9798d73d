"""Fine-tuning from the command line: trained, stopped and continued, evaluated beside its base, sampled, exported."""

import json
import shlex
import shutil

import jax
import numpy as np
import pytest

from commands import answer, called, plimsoll
from once import made_once
from plimsoll.files.run_folder import RunFolder
from plimsoll.models.pretrained.adapters import read_adapter
from plimsoll.models.pretrained.weights import load
from plimsoll.recipes.finetune.task import Published
from plimsoll.recipes.saved import from_dict
from plimsoll.training.checkpoints import FROZEN, load_arrays, read_leaves
from plimsoll.types import Compute
from small_runs import checkpoint_steps, newest_checkpoint, newest_fingerprint
from tuning_files import SHAPE, write_chats, write_model

OPTIONS = shlex.split(
    "--seq-len 128 --batch-size 4 --steps 6 --warmup-steps 1 --learning-rate 0.01 --lora-rank 4 --lora-dropout 0.1"
    " --lora-targets q,v --frozen-bits 16 --save-every 2 --memory 2GiB --micro-batch 2 --remat none --loss-chunk 0"
    " --mlp-chunk 0 --attention-chunk 0 --precision float32 --prefetch 0 --async-save False --quiet"
)
"""So that little is compiled."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return made_once(tmp_path_factory, "run-of-finetune", train)


def train(folder):
    write_model(folder / "model")
    write_chats(folder / "chats.jsonl", 300)
    done = tuned(folder)
    assert done.returncode == 0, done.stderr
    assert "the run began with weights that were given to it (--pretrained)" in done.stdout


def tuned(folder, *options):
    given = ["--pretrained", "model", "--dataset-id", "chats.jsonl", *OPTIONS, *options]
    return plimsoll("train", "finetune", *given, "--run", "run", cwd=folder)


def newest(folder):
    return newest_checkpoint(folder / "run")


def test_a_checkpoint_holds_the_adapters_and_their_moments_alone(trained):
    leaves = dict(read_leaves(newest(trained)))
    assert not any(path.startswith(FROZEN) for path in leaves)
    kernels = [sides for name, sides in SHAPE.tensors().items() if "q_proj" in name or "v_proj" in name]
    learned = sum(4 * (out + inner) for out, inner in kernels)
    of = {
        part: sum(leaf.size for path, leaf in leaves.items() if path.startswith(f"['{part}']"))
        for part in ("params", "optimizer")
    }
    assert of["params"] == learned
    assert 2 * learned <= of["optimizer"] < 2 * learned + 100
    held = json.loads((trained / "run/ledger.json").read_text())["components"]
    assert held["parameters"]["measured"] > 4 * learned  # the frozen ones are in memory all the same


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_at_the_same_bits(trained, tmp_path):
    """It reads the frozen model again, which the checkpoint does not have."""
    for name in ("model", "chats.jsonl"):
        copy = shutil.copytree if (trained / name).is_dir() else shutil.copy
        copy(trained / name, tmp_path / name)
    plan = ["--plan", str(trained / "run/plan.json")]
    stopped = tuned(tmp_path, "--max-steps", "3", *plan)
    assert stopped.returncode == 0, stopped.stderr
    assert checkpoint_steps(tmp_path / "run")[0] == 3
    went_on = tuned(tmp_path)
    assert went_on.returncode == 0, went_on.stderr
    assert checkpoint_steps(tmp_path / "run")[0] == 6
    assert newest_fingerprint(tmp_path / "run") == newest_fingerprint(trained / "run")


def test_an_evaluation_has_the_loss_of_the_untouched_base_beside_that_of_the_adapters(trained):
    found = answer("evaluate", trained / "run")
    recipe = from_dict(json.loads((trained / "run/recipe.json").read_text()))
    base, total, count = Published(SHAPE, Compute(), frozen=True), 0.0, 0.0
    params = {"trainable": load(trained / "model", SHAPE, bits=16)}
    loss_of = jax.jit(lambda params, batch: base.loss(params, None, batch, None, train=False)[0])
    for batch in recipe.open(trained / "run").validation(examples=2):
        loss = loss_of(params, batch)
        total, count = total + float(loss.total), count + float(loss.weight)
    assert found["base_loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["tokens"] == count
    assert found["loss"] < found["base_loss"]


def test_an_answer_is_sampled_through_the_chat_template(trained):
    found = answer("sample", trained / "run", "--prompt", "why?", "--tokens", "4", "--temperature", "0")
    assert found["prompt"] == "why?"
    assert found["tokens"] <= 4
    assert answer("sample", trained / "run", "--prompt", "why?", "--tokens", "4", "--temperature", "0") == found


def test_what_is_exported_is_what_the_checkpoint_holds(trained, tmp_path):
    done = called("export", trained / "run", "--adapter", tmp_path / "adapter", "--step", "last")
    assert done.returncode == 0, done.stderr
    assert "`peft` loads it" in done.stdout
    learned, _ = read_adapter(tmp_path / "adapter", SHAPE)
    like = {"params": {"trainable": jax.eval_shape(lambda: learned)}}
    saved = load_arrays(newest(trained), like, only="['params']")
    jax.tree.map(np.testing.assert_array_equal, learned, saved["params"]["trainable"])


def test_a_run_whose_model_was_changed_is_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    path = tmp_path / "copy/run/data.json"
    about = json.loads(path.read_text())
    about["weights"]["files"]["config.json"]["sha256"] = "0" * 64
    path.write_text(json.dumps(about))
    run = tmp_path / "copy/run"
    RunFolder(run).seal()  # as it was prepared with another model
    for command in (["evaluate", run], ["sample", run], ["export", run, "--merged", tmp_path / "out"]):
        refused = called(*command)
        assert refused.returncode != 0
        assert "model is not the data of this run any more" in refused.stderr
