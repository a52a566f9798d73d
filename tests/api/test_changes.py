"""A run that was begun with one length goes on to a longer one, exactly where it can, and noted where it cannot."""

import json
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import TINY, plimsoll
from hypotheses import examples
from interaction_files import write_small
from making import made
from packed_files import write_packed
from plimsoll import preset
from plimsoll.api import changes
from plimsoll.api.train import prepare_data
from plimsoll.errors import DataError, PlimsollError, RunError
from plimsoll.files.manifest import finish
from plimsoll.files.run_folder import RunFolder
from plimsoll.optimizers.adam_atan2 import AdamATan2
from plimsoll.optimizers.adamw import AdamW
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.saved import from_dict, to_dict
from report_examples import PLANNED


def saved(checkpoint):
    checkpoint.mkdir()
    finish(checkpoint)


@settings(max_examples=examples(40))
@given(
    kind=st.sampled_from([AdamW, AdamATan2]),
    warmup=st.integers(0, 30),
    final=st.sampled_from([0.0, 0.1, 1.0]),
    steps=st.integers(1, 60),
    more=st.integers(0, 60),
    share=st.floats(0, 1),
)
def test_a_beginning_is_called_the_same_only_where_every_rate_is(kind, warmup, final, steps, more, share):
    rule, taken = kind(warmup_steps=warmup, final_fraction=final), round(share * steps)
    counts = np.arange(taken, dtype=np.float32)
    short, long = (np.array([rule.schedule(each)(count) for count in counts]) for each in (steps, steps + more))
    if rule.same_beginning(steps, steps + more, taken=taken):
        np.testing.assert_allclose(short, long, rtol=1e-6)
    elif taken == steps and more and final < 1:
        assert not np.allclose(short, long, rtol=1e-4), "it is refused where nothing would change"


def begun(path, recipe, *, taken, prepared=None):
    """A run's folder that has a plan and checkpoints, and nothing in them."""
    folder = RunFolder(path)
    folder.create()
    folder.write("recipe.json", to_dict(recipe))
    prepared = prepared or Prepared(steps=recipe.length.steps, steps_per_epoch=50)
    folder.write("data.json", prepared.to_json())
    folder.write("plan.json", {})
    folder.seal()
    saved(folder.checkpoints / f"step-{taken:08d}")
    return folder


def longer(recipe, steps):
    return recipe.replace(steps=steps)


CODE = preset("code")  # its rate decays
SUDOKU = preset("sudoku", data="puzzles/", steps=200, warmup_steps=100)  # whose rate is constant after warm-up


def test_a_constant_rate_goes_on_and_a_decay_asks(tmp_path):
    folder = begun(tmp_path / "sudoku", SUDOKU, taken=200)
    prepared = prepare_data(folder, longer(SUDOKU, 400), print)
    assert (prepared.steps, folder.has(changes.PENDING)) == (400, True)
    assert from_dict(folder.read("recipe.json")) == longer(SUDOKU, 400)
    assert prepared.changes == ["extended at step 200 from 200 to 400 steps"]
    folder.require_sealed()

    folder = begun(tmp_path / "code", CODE, taken=600)
    files = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(
        RunError, match=r"run of 600 steps, .* run of 900: .* `plimsoll resume .*code --steps 900` goes on"
    ):
        prepare_data(folder, longer(CODE, 900), print)
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == files
    prepared = prepare_data(folder, longer(CODE, 900), print, on_purpose=["steps"])
    assert prepared.steps == 900
    assert prepared.changes[0].endswith("the steps before had the learning rates of the old length")

    folder = begun(tmp_path / "new", CODE, taken=0)
    assert prepare_data(folder, longer(CODE, 900), print).steps == 900


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 300}, "run of 600 steps, of which 600 are taken, and 300 are shorter"),
        ({"steps": 900, "seed": 1}, "was begun with other options: --steps is 600 there and 900 here; --seed is 42"),
        ({"learning_rate": 1e-2}, "--learning-rate is 0.004 there and 0.01 here. `plimsoll resume "),
        ({"batch_size": 4}, "--batch-size is 16 there and 4 here. `plimsoll resume "),
    ],
)
def test_what_cannot_change_is_refused_with_what_differs_and_nothing_is_written(tmp_path, options, words):
    folder = begun(tmp_path / "run", CODE, taken=600)
    with pytest.raises(RunError, match=re.escape(words)):
        prepare_data(folder, CODE.replace(**options), print, on_purpose=["steps", "batch_size"])
    assert folder.read("recipe.json") == to_dict(CODE)
    assert not folder.has(changes.PENDING)


def test_a_learning_rate_is_changed_on_purpose_and_noted(tmp_path):
    folder = begun(tmp_path / "run", CODE, taken=300)
    faster = CODE.replace(learning_rate=1e-2)
    prepared = prepare_data(folder, faster, print, on_purpose=["learning_rate"])
    assert from_dict(folder.read("recipe.json")) == faster
    assert prepared.changes == ["changed at step 300: --learning-rate from 0.004 to 0.01"]
    assert folder.has(changes.PENDING), "the schedule is part of the compiled step"
    assert prepare_data(folder, faster, print) == prepared, "the same command goes on without saying so"


def test_a_run_becomes_shorter_on_purpose_but_not_than_what_is_taken(tmp_path):
    folder = begun(tmp_path / "run", CODE, taken=300)
    with pytest.raises(RunError, match="400 are shorter"):
        prepare_data(folder, longer(CODE, 400), print)
    prepared = prepare_data(folder, longer(CODE, 400), print, on_purpose=["steps"])
    assert prepared.steps == 400
    assert prepared.changes[0].startswith("shortened at step 300 from 600 to 400 steps; ")


def test_a_length_in_epochs_is_counted_over_the_runs_data(tmp_path):
    """Also of a recipe that evaluates every so many epochs."""
    write_small(tmp_path / "data", [[1, 2, 3, 4, 5]] * 7, width=8, clusters=3)
    recipe = preset("recommend", data=str(tmp_path / "data"), seq_len=4, batch_size=2, width=16, epochs=20)
    prepared = recipe.open(tmp_path).prepare(lambda _: None)
    folder = begun(tmp_path / "run", recipe, taken=10, prepared=prepared)
    prepared = prepare_data(folder, recipe.replace(epochs=30), print, on_purpose=["epochs"])
    assert prepared.steps == 105  # 7 users in batches of 2


def test_it_is_extended_at_the_newest_checkpoint_that_is_whole(tmp_path):
    folder = begun(tmp_path / "run", CODE, taken=600)
    saved(folder.checkpoints / "step-00000450")
    (folder.checkpoint(600) / "position.json").write_text("{}")  # after its manifest was written
    prepared = prepare_data(folder, longer(CODE, 900), print, on_purpose=["steps"])
    assert prepared.changes[0].startswith("extended at step 450 from 600 to 900 steps")


def killed_after(writes, monkeypatch, work):
    """Does some work that is killed after so many JSON files were written."""
    wrote, write = [], RunFolder.write

    def killed(self, name, value):
        if len(wrote) == writes:
            raise KeyboardInterrupt
        wrote.append(name)
        write(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            work()


@pytest.mark.parametrize("kept", range(4))
def test_a_kill_between_two_files_is_finished_by_the_same_command(tmp_path, kept, monkeypatch):
    folder = begun(tmp_path / "run", CODE, taken=600)

    def extend():
        return prepare_data(folder, longer(CODE, 900), print, on_purpose=["steps"])

    killed_after(kept, monkeypatch, extend)
    prepared = extend()
    assert prepared.steps == 900
    assert len(prepared.changes) == 1
    assert folder.has(changes.PENDING), "until a plan for the new length is written"


SIZES = {"width": 32, "layers": 1, "heads": 1, "vocab_size": 300, "seq_len": 32, "batch_size": 4, "steps": 60}


def text_run(path):
    """A run of text after 24 steps, and its recipe with other text."""
    texts = {"first": "abc def ghi", "other": "xyz uvw rst opq"}
    for name, words in texts.items():
        (path / name).with_suffix(".txt").write_text("\n\n".join(f"{words} {n} " * 30 for n in range(120)))
    recipe = preset("stories").replace(dataset_id=str(path / "first.txt"), **SIZES)
    folder = RunFolder(path / "run")
    folder.create()
    prepare_data(folder, recipe, lambda _: None)
    folder.write("plan.json", {})
    saved(folder.checkpoint(24))
    return folder, recipe.replace(dataset_id=str(path / "other.txt"))


def test_other_data_is_read_with_the_tokenizer_that_was_learned(tmp_path):
    folder, recipe = text_run(tmp_path)
    tokenizer, held_out = ((folder.path / name).read_bytes() for name in ("tokenizer.json", "validation.npy"))
    before = Prepared.read(folder)
    with pytest.raises(
        DataError, match=r"not the data of this run .*; `plimsoll resume .*run --dataset-id .*other\.txt`"
    ):
        prepare_data(folder, recipe, print)
    prepared = prepare_data(folder, recipe, print, on_purpose=["dataset_id"])
    assert (folder.path / "tokenizer.json").read_bytes() == tokenizer
    assert (folder.path / "validation.npy").read_bytes() != held_out
    assert (prepared.spec, prepared.steps, prepared.data_since) == (before.spec, 60, 24)
    assert prepared.files == recipe.data.facts().to_json() != before.files
    assert re.fullmatch(r"changed at step 24: --dataset-id from .*first.txt to .*other.txt", prepared.changes[0])
    assert prepare_data(folder, recipe, print, on_purpose=["dataset_id"]) == prepared
    assert prepare_data(folder, recipe, print) == prepared, "it is the run's own by now"


@pytest.mark.parametrize("kept", range(4))
def test_a_kill_while_data_changes_is_finished_by_the_same_command(tmp_path, kept, monkeypatch):
    folder, recipe = text_run(tmp_path)
    before = (folder.path / "validation.npy").read_bytes()

    def change():
        return prepare_data(folder, recipe, print, on_purpose=["dataset_id"])

    killed_after(kept, monkeypatch, change)
    prepared = change()
    assert (prepared.data_since, len(prepared.changes)) == (24, 1)
    assert (folder.path / "validation.npy").read_bytes() != before
    assert not folder.has(changes.PREPARED)
    folder.require_sealed()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("seq_len", 16, "length is 32 there and 16 here"),
        ("vocab_size", 400, "vocab is 300 there and 400 here"),
        ("width", 64, "--width is 32 there and 64 here"),
    ],
)
def test_other_data_leaves_the_model_as_it_is(tmp_path, option, value, words):
    folder, recipe = text_run(tmp_path)
    files = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(PlimsollError, match=words):
        prepare_data(folder, recipe.replace(**{option: value}), print, on_purpose=["dataset_id", option])
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == files


def test_text_that_was_packed_with_another_tokenizer_is_refused(tmp_path):
    ids = np.arange(4096) % 256
    for name, tokenizer in (("first", b"{}"), ("longer", b"{}"), ("others", b'{"a": 1}')):
        write_packed(tmp_path / name, ids if name == "first" else [*ids, *ids], tokenizer=tokenizer)
    recipe = made("longcontext", data=str(tmp_path / "first"), seq_len=64, batch_size=2, steps=60)
    (tmp_path / "run").mkdir()
    folder = begun(tmp_path / "run", recipe, taken=10, prepared=recipe.open(tmp_path / "run").prepare(lambda _: None))
    with pytest.raises(
        DataError, match=r"others was packed with another tokenizer .* --tokenizer .*run/tokenizer.json`"
    ):
        prepare_data(folder, recipe.replace(data=str(tmp_path / "others")), print, on_purpose=["data"])
    prepared = prepare_data(folder, recipe.replace(data=str(tmp_path / "longer")), print, on_purpose=["data"])
    assert (prepared.steps, prepared.steps_per_epoch, prepared.data_since) == (60, 63.5, 10)


def test_items_whose_numbers_mean_something_else_are_refused(tmp_path):
    histories = {"first": [[1, 2, 3, 4, 5]] * 7, "longer": [[5, 4, 3, 2, 1, 2]] * 9, "others": [[1, 2, 3, 4, 5]] * 7}
    for name, sequences in histories.items():
        write_small(tmp_path / name, sequences, width=8, clusters=2 if name == "others" else 3)
    recipe = preset("recommend", data=str(tmp_path / "first"), seq_len=4, batch_size=2, width=16, steps=60)
    folder = begun(tmp_path / "run", recipe, taken=10, prepared=recipe.open(tmp_path).prepare(lambda _: None))
    with pytest.raises(DataError, match=r"others has other items or clusters .*: clusters.npy has other content"):
        prepare_data(folder, recipe.replace(data=str(tmp_path / "others")), print, on_purpose=["data"])
    prepared = prepare_data(folder, recipe.replace(data=str(tmp_path / "longer")), print, on_purpose=["data"])
    assert (prepared.steps_per_epoch, prepared.data_since) != (3.5, 0)


def test_a_damaged_plan_names_the_way_out_and_what_is_kept(tmp_path):
    folder = begun(tmp_path / "run", CODE, taken=600)
    for text in ("{", "{}", '{"plan": 3}'):
        (folder.path / "plan.json").write_text(text)
        with pytest.raises(RunError, match=r"add --replan .* checkpoints stay, and it goes on from step 600"):
            folder.planned()

    # Values that are none of their levers, too.
    whole = PLANNED.to_dict()
    plan = whole["plan"]
    folder.write("plan.json", whole)
    assert folder.planned() == PLANNED
    values = [(name, value) for name in plan for value in (None, [2])] + [("micro_batch", "x"), ("micro_batch", 0.5)]
    wrong = [{**whole, "plan": {**plan, name: value}} for name, value in values]
    wrong += [{**whole, name: None} for name in ("budget_bytes", "phase", "phases", "components", "source")]
    wrong += [{**whole, "plan": {**plan, "micro_batch": micro}} for micro in (3, 8)]  # of 64 examples
    for each in wrong:
        folder.write("plan.json", each)
        with pytest.raises(RunError, match=r"not as plimsoll writes it .* add --replan"):
            folder.planned()


@pytest.mark.by_hand
def test_a_longer_run_is_the_one_that_was_begun_with_that_length(tmp_path):
    """To the bit, where no rate differs; and after a damaged plan."""
    random.seed(0)
    words = ["the", "ship", "sails", "over", "deep", "water", "and", "keeps", "its", "line", "above", "the", "sea"]
    texts = (" ".join(random.choices(words, k=80)) for _ in range(100))
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    command = ["train", "stories", "--dataset-id", tmp_path / "text.txt", *TINY, "--warmup-steps", 4, "--quiet"]

    def trained(name, *options):
        done = plimsoll(*command, "--run", tmp_path / name, *options)
        return done.returncode, done.stderr

    def fingerprint(name):
        return json.loads(plimsoll("fingerprint", tmp_path / name, "--json").stdout)["fingerprint"]

    assert trained("whole", "--steps", 9)[0] == 0
    assert trained("longer", "--steps", 8, "--max-steps", 4)[0] == 0
    assert trained("longer", "--steps", 9) == (0, ""), "it is still in its warm-up"
    assert fingerprint("longer") == fingerprint("whole")
    early, late = (tmp_path / "longer/log.txt").read_text().split("The run is in ")[1:]
    assert "the same command with a larger --max-steps" in early
    assert "the same command" not in late
    assert f"plimsoll sample {tmp_path / 'longer'}" in late

    code, error = trained("whole", "--steps", 12)
    assert (code, "plimsoll resume" in error) == (2, True)
    (tmp_path / "whole/plan.json").write_text("{")
    resume = ["resume", tmp_path / "whole", "--steps", 12, "--quiet"]
    done = plimsoll(*resume)
    assert (done.returncode, "add --replan" in done.stderr) == (2, True)
    assert plimsoll(*resume, "--replan", cwd="/").returncode == 0
    ledger = json.loads((tmp_path / "whole/ledger.json").read_text())
    assert ledger["resumed_from_step"] == 9
    assert [note for note in ledger["notes"] if note.startswith("extended at step 9 from 9 to 12 steps")]
