"""Parts combine: every model with all data that gives what it reads; what does not go together is refused by name."""

import itertools
import json
import math
import sys

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from making import made
from own_files import write
from packed_files import write_packed
from plimsoll.errors import DataError, PlimsollError, RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.optimizers.adam_atan2 import AdamATan2
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.settings import Optimizer
from plimsoll.options import options_of
from plimsoll.recipes.flat import overridden, rows
from plimsoll.recipes.longcontext.model import Eigen
from plimsoll.recipes.parts import Length, Model, Prepared
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.recipe import Recipe, with_spec
from plimsoll.recipes.registered import PRESETS, installed, part_class, parts, reference_of
from plimsoll.recipes.registry import preset, swapped
from plimsoll.recipes.saved import differences, from_dict, to_dict
from plimsoll.recipes.specs import TokenSpec, spec_of
from plimsoll.recipes.text.data import Text
from plimsoll.recipes.text.model import Decoder
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Compute
from recipe_packages import describe
from task_examples import puzzle_folder

MODELS, DATA, OPTIMIZERS = (parts(role) for role in ("model", "data", "optimizer"))


def fits(model, data):
    return issubclass(part_class("data", data).gives, part_class("model", model).reads)


# What there is.


def test_every_part_is_registered_by_its_own_name_and_each_of_its_options_is_told():
    for role, names in (("model", MODELS), ("data", DATA), ("optimizer", OPTIMIZERS)):
        for name in names:
            cls = part_class(role, name)
            assert f"{cls.__module__}:{cls.__qualname__}" == reference_of(role, name)
            for option in options_of(cls):
                assert option.text, f"{name} does not say what {option.name} is"
                assert json.dumps(option.default) is not None


@pytest.mark.parametrize("name", PRESETS)
def test_an_option_stands_in_one_part_and_a_preset_is_its_parts_with_its_options(name):
    recipe = preset(name)
    names = [option.name for option in rows(recipe)]
    assert len(names) == len({*names})
    blank = Recipe(**{role: type(part)() for role, part in recipe.parts.items()})
    assert overridden(blank, {}).replace(**recipe.options) == recipe
    assert {option.name: option.default for option in rows(recipe)} == recipe.options


# What goes together.

SIZES = {
    "decoder": {"width": 16, "layers": 1, "heads": 1},
    "eigen": {"width": 16, "layers": 1, "states": 4},
    "trm": {"width": 16, "layers": 1, "high_cycles": 2, "low_cycles": 1, "puzzle_positions": 1, "halt_max_steps": 2},
}


@pytest.fixture
def sources(tmp_path):
    """Options of the data parts, by name."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"one two three four {i}" for i in range(400)))
    ids = np.random.default_rng(0).integers(0, 256, 3000)
    packed = write_packed(tmp_path / "packed", ids, validation=ids[:700])
    return {
        "text": {"dataset_id": str(tmp_path / "a.txt"), "vocab_size": 300},
        "packed": {"data": str(packed)},
        "puzzles": {"data": puzzle_folder(16, 12, 6), "vocab_size": 12, "identifiers": 6},
    }


TOGETHER = [
    *itertools.product(("decoder", "eigen"), ("text", "packed"), OPTIMIZERS),
    *itertools.product(("trm",), ("puzzles",), OPTIMIZERS),
]
QUICK = [("eigen", "text", "adam-atan2"), ("trm", "puzzles", "adamw")]


@pytest.mark.parametrize(
    ("model", "data", "optimizer"),
    [pytest.param(*parts, marks=() if parts in QUICK else pytest.mark.slow) for parts in TOGETHER],
)
def test_what_goes_together_takes_a_step_and_its_state_is_saved_and_restored(sources, tmp_path, model, data, optimizer):
    recipe = Recipe(
        model=part_class("model", model)(**SIZES[model]),
        data=part_class("data", data)(**sources[data], seq_len=16),
        optimizer=part_class("optimizer", optimizer)(),
        length=Length(batch_size=4, steps=3),
    )
    run = RunFolder(tmp_path / "run")
    run.create()
    opened = recipe.open(run.path)
    run.write("data.json", opened.prepare(lambda _: None).to_json())
    batch = next(opened.source(prefetch=0))
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == recipe.spec.batch(4)
    for held_out in opened.validation(examples=2):
        shapes = {name: array.shape for name, array in held_out.items()}
        assert shapes == {name: shape for name, (shape, _) in recipe.spec.validation_batch(2).items()}

    task, rule = recipe.task(Compute()), recipe.update_rule(3)
    state = make_init(task, rule, examples=4)(np.uint32(0))
    after, report = jax.jit(make_step(task, rule, StepSpec(accumulation=2)))(state, batch)
    assert math.isfinite(float(report["loss"]))

    with Checkpoints(run, in_background=False) as checkpoints:
        checkpoints.save(1, after, {})
        loaded, _ = checkpoints.newest(after)
    jax.tree.map(np.testing.assert_array_equal, loaded.state, after)


def test_parts_of_other_recipes_are_planned_saved_and_opened_again(sources):
    recipe = Recipe(model=Eigen(width=32), data=Text(**sources["text"]), optimizer=AdamW(learning_rate=1e-3))
    assert recipe.kind == "eigen+text"
    assert recipe.spec.vocab == 300
    saved = json.loads(json.dumps(to_dict(recipe)))
    assert saved["parts"] == {"model": "eigen", "data": "text", "optimizer": "adamw"}
    assert from_dict(saved) == recipe
    assert differences(recipe, recipe.replace(optimizer=AdamATan2())).keys() == {"parts"}


def test_a_model_asks_for_the_vocabulary_of_a_tokenizer_that_is_trained_for_it():
    assert Recipe(model=Decoder(target_params=1_000_000), data=Text(), optimizer=AdamW()).spec.vocab == 4_096
    assert Recipe(model=Decoder(target_params=300_000_000), data=Text(), optimizer=AdamW()).spec.vocab == 50_257


# What does not.


@pytest.mark.parametrize(
    ("model", "data"), [pair for pair in itertools.product(MODELS, DATA) if not fits(*pair)], ids="-".join
)
def test_what_does_not_go_together_is_refused_with_what_would(model, data):
    with pytest.raises(RecipeError) as refusal:
        Recipe(model=part_class("model", model)(), data=part_class("data", data)(), optimizer=AdamW())
    assert f"the model {model} reads" in str(refusal.value)
    assert f"the data {data} gives" in str(refusal.value)
    assert all(name in str(refusal.value) for name in DATA if fits(model, name))
    assert all(name in str(refusal.value) for name in MODELS if fits(name, data))


@pytest.mark.parametrize("role", ["model", "data", "optimizer", "length"])
def test_what_is_no_part_is_refused(role):
    parts = {"model": Decoder(), "data": Text(), "optimizer": AdamW(), "length": Length()}
    with pytest.raises(RecipeError, match=f"{role}.*got a int"):
        Recipe(**parts | {role: 3})


def test_any_optax_transformation_is_an_optimizer():
    recipe = Recipe(model=Decoder(), data=Text(), optimizer=optax.sgd(0.1))
    assert recipe.update_rule(5).init({"w": 1.0}) == optax.sgd(0.1).init({"w": 1.0})
    assert "learning_rate" not in recipe.options


def test_a_model_without_a_task_is_refused():
    class Blank(Model):
        name = "blank"
        reads = TokenSpec

    recipe = Recipe(model=Blank(), data=Text(), optimizer=optax.sgd(0.1))
    with pytest.raises(RecipeError, match="the model Blank has no method `task`"):
        recipe.task(Compute())


def test_an_option_of_two_parts_is_refused():
    class Sized(Optimizer):
        width: int = 3

        def rule(self, steps, storage=None):
            raise NotImplementedError

    from dataclasses import dataclass  # fields of a class in a function are read where they are made

    with pytest.raises(RecipeError, match=r"--width is an option of two parts"):
        Recipe(model=Eigen(), data=Text(), optimizer=dataclass(frozen=True, kw_only=True)(Sized)())


# What is exchanged.


def test_parts_are_exchanged_by_name_and_options_that_both_have_keep_their_values():
    recipe = preset("longcontext", seq_len=256, width=64, learning_rate=1e-3)
    swap = swapped(recipe, {"data": "text", "optimizer": "adam-atan2"})
    assert (type(swap.model), type(swap.data), type(swap.optimizer)) == (Eigen, Text, AdamATan2)
    assert (swap.options["seq_len"], swap.options["width"], swap.options["learning_rate"]) == (256, 64, 1e-3)
    assert swap.length == recipe.length
    with pytest.raises(RecipeError, match=r"--swap tokenizer=\.\.\.: a recipe has the parts model, data, optimizer"):
        swapped(recipe, {"tokenizer": "bpe"})
    with pytest.raises(RecipeError, match=r"no data called 'txt': did you mean text\?"):
        swapped(recipe, {"data": "txt"})
    with pytest.raises(RecipeError, match=r"no data called 'trm': data is one of text,"):
        swapped(recipe, {"data": "trm"})
    with pytest.raises(RecipeError, match=r"reads tokens, .* gives puzzles: take data=text or packed"):
        swapped(recipe, {"data": "puzzles"})


def test_a_part_is_told_from_an_option_of_its_name():
    packed = made("longcontext", data="packed/")
    assert packed.data.data == "packed/"
    assert packed.replace(data=Text()).kind == "eigen+text"
    assert packed.replace(data="other/").data.data == "other/"


# What is known without data.


@settings(max_examples=examples(50))
@given(tokens=st.integers(1, 10_000), vocab=st.integers(1, 10**6), filled=st.booleans())
def test_a_spec_survives_json(tokens, vocab, filled):
    spec = made("longcontext", seq_len=tokens, vocab_size=vocab).spec
    assert spec_of(json.loads(json.dumps(spec.to_json()))) == spec
    assert ("counted" in spec.validation_batch(3)) is spec.filled


@pytest.mark.parametrize("name", ["stories", "sudoku", "longcontext", "recommend", "finetune"])
def test_a_saved_spec_is_that_of_the_data(name, tmp_path):
    recipe = preset(name)
    run = RunFolder(tmp_path)
    run.write("data.json", Prepared(steps=3, steps_per_epoch=None, spec=recipe.spec).to_json())
    assert Prepared.read(run).spec == recipe.spec


def test_a_spec_of_another_version_is_refused(tmp_path):
    run = RunFolder(tmp_path)
    run.write("data.json", {"steps": 1, "steps_per_epoch": 1.0, "spec": {"kind": "waves", "arrays": {}, "further": {}}})
    with pytest.raises(PlimsollError, match=r"data.json of .* \(KeyError: 'waves'\): .* of another version"):
        Prepared.read(run)


def test_a_trained_model_is_built_without_its_data(tmp_path):
    ids = np.random.default_rng(0).integers(0, 256, 3000)
    recipe = made("longcontext", data=str(write_packed(tmp_path / "packed", ids, vocab_size=777)), width=16, layers=1)
    spec = recipe.spec
    gone = recipe.replace(data=str(tmp_path / "gone"))
    with pytest.raises(DataError):
        _ = gone.spec
    assert with_spec(gone, spec).task(Compute()).decoder.shape.vocab == 777


# What is somebody else's.

MINE = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp
import plimsoll
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.adamw import AdamW
from plimsoll.options import Ge
from plimsoll.recipes.parts import Length, Model
from plimsoll.recipes.specs import TokenSpec
from plimsoll.recipes.text.data import Text


@dataclass(frozen=True, kw_only=True)
class Mine(Model):
    name: ClassVar = "mine"
    reads: ClassVar = TokenSpec

    units: Annotated[int, Ge(1)] = 8
    \"\"\"Width of the network.\"\"\"

    def task(self, spec, compute):
        return NextToken(DecoderShape(vocab=spec.vocab, width=self.units, layers=1, heads=1, inner=8), compute)


recipe = plimsoll.Recipe(model=Mine(), data=Text(vocab_size=300), optimizer=AdamW(), length=Length(steps=5))
"""


def test_a_file_may_have_a_model_of_its_own_on_our_data(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    recipe = preset(write(tmp_path, MINE), units=16, seq_len=32)
    assert recipe.task(Compute()).decoder.shape.width == 16
    saved = json.loads(json.dumps(to_dict(recipe)))
    assert (saved["kind"], saved["name"], saved["parts"]) == ("file", "recipe", {"data": "text", "optimizer": "adamw"})
    assert from_dict(saved) == recipe
    packed = swapped(recipe, {"data": "packed"})
    assert from_dict(json.loads(json.dumps(to_dict(packed)))) == packed
    with pytest.raises(RecipeError, match="--units must be 1 or more, got 0"):
        recipe.replace(units=0)


def test_a_part_of_a_package_is_registered_by_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "mine_package.py").write_text(
        MINE.replace("recipe = ", "_unused = ")
        + "from plimsoll.recipes.family import Family\n"
        + 'FAMILY = Family(parts={"model": {"mine": "mine_package:Mine"}})\n'
    )
    describe(tmp_path, "mine-package", "1", "plimsoll.recipes", {"mine": "mine_package:FAMILY"})
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    try:
        recipe = swapped(preset("stories"), {"model": "mine"})
        saved = json.loads(json.dumps(to_dict(recipe)))
        assert saved["parts"]["model"] == "mine"
        assert saved["code"].keys() == {"mine"}
        assert from_dict(saved) == recipe
        with pytest.raises(RecipeError, match=r"reads puzzles, .* gives tokens.* model=decoder or eigen or mine"):
            Recipe(model=Trm(), data=Text(), optimizer=AdamW())
    finally:
        installed.cache_clear()
        sys.modules.pop("mine_package", None)
