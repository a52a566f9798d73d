"""Options of a recipe as keywords of `plan` and `train`."""

import dataclasses
import inspect

import pytest

import plimsoll
from plimsoll.api import follow, plan
from plimsoll.api.finetune import Tune
from plimsoll.api.keywords import options_of
from plimsoll.cli.options import PlanOptions
from plimsoll.engine.options import TrainOptions
from plimsoll.options import default_of
from plimsoll.recipes.recipe import Pinned
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset


class Reached(Exception):
    pass


@pytest.fixture
def recipe_of(monkeypatch):
    """The recipe that a call plans or trains: as far as it is understood, nothing is done."""

    def planned(question, say):
        raise Reached(question.recipe)

    def trained(recipe, options, say):
        raise Reached(recipe)

    monkeypatch.setattr(plan, "ask", planned)
    monkeypatch.setattr(follow, "prepare_run", trained)

    def call(function, *arguments, **options):
        with pytest.raises(Reached) as stopped:
            function(*arguments, **options)
        return stopped.value.args[0]

    return call


@pytest.mark.parametrize("function", [plimsoll.plan, plimsoll.train])
def test_fields_of_the_recipe_are_taken_out_of_the_keywords(function, recipe_of):
    recipe = recipe_of(function, "stories", dataset_id="my-texts/", steps=200, memory="400MiB", chip="cpu")
    assert (recipe.options["dataset_id"], recipe.length.steps) == ("my-texts/", 200)
    assert recipe.length.batch_size == plimsoll.preset("stories").length.batch_size
    assert recipe_of(function, recipe, chip="cpu", seed=7).length.seed == 7
    assert recipe_of(function, Pinned(recipe=recipe), chip="cpu", seed=7).length.seed == 7
    assert recipe_of(function, "stories", chip="cpu", target_params="5M").model.target_params == 5_000_000


@pytest.mark.parametrize("function", [plimsoll.plan, plimsoll.train])
def test_data_is_understood_by_every_recipe_that_has_some(function, recipe_of):
    for name in ("stories", "finetune"):
        assert recipe_of(function, name, data="a.jsonl", chip="cpu").data.dataset_id == "a.jsonl"
        assert plimsoll.preset(name, data="a.jsonl").data.dataset_id == "a.jsonl"
    for name in ("sudoku", "control", "longcontext", "recommend"):
        assert recipe_of(function, name, data="a.hdf5", chip="cpu").data.data.endswith("a.hdf5")
        assert recipe_of(function, name, dataset_id="a.hdf5", chip="cpu").data.data.endswith("a.hdf5")
    with pytest.raises(plimsoll.RecipeError, match="data and dataset_id are the same option"):
        function("stories", data="a.jsonl", dataset_id="b.jsonl")


@pytest.mark.parametrize("function", [plimsoll.plan, plimsoll.train])
def test_a_part_is_taken_by_its_role(function, recipe_of):
    recipe = recipe_of(function, "stories", optimizer=plimsoll.Lion(), learning_rate=1e-3, chip="cpu")
    assert recipe.optimizer == plimsoll.Lion(learning_rate=1e-3)
    text = plimsoll.preset("stories", data=dataclasses.replace(recipe.data, seq_len=64)).data
    assert (text.seq_len, text.dataset_id) == (64, recipe.data.dataset_id)
    with pytest.raises(plimsoll.RecipeError, match=r"^optimizer must be an optax transformation"):
        function("stories", optimizer=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"halt_max_steps": 3},
            r"^the recipe stories has no option halt_max_steps, which is one of sudoku, .* and 2 more$",
        ),
        ({"lora_rank": 3}, r"^the recipe stories has no option lora_rank, which is one of finetune$"),
        ({"stepps": 3}, r"^plimsoll\.(plan|train) of stories has no option stepps: did you mean steps\?$"),
        ({"qqqq": 1}, r"of stories has no option qqqq; there are .* more \(`plimsoll (plan|train) stories --help`\)$"),
        ({"micro_batch": 4}, r"takes levers together: pins={'micro_batch': 4} keeps micro_batch so$"),
        ({"ema_decay": [1]}, r"^--ema-decay must be a number, got \[1\]$"),
        ({"steps": 0}, r"^--steps must be 1 or more and"),
    ],
)
@pytest.mark.parametrize("function", [plimsoll.plan, plimsoll.train])
def test_what_is_no_option_is_refused_in_one_paragraph(function, options, said):
    with pytest.raises(plimsoll.RecipeError, match=said) as refusal:
        function("stories", **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stepps": 3}, r"^this recipe has no option stepps: did you mean steps\?$"),
        ({"qqqq": 3}, r"^this recipe has no option qqqq; it has "),
        ({"batch_size": 0}, r"^--batch-size must be 1 or more, got 0$"),
    ],
)
def test_a_preset_refuses_what_is_no_option_in_one_paragraph(options, said):
    with pytest.raises(plimsoll.RecipeError, match=said) as refusal:
        plimsoll.preset("code", **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"patience": 0}, r"^--patience must be 1 or more, got 0$"),
        ({"log_every": True}, r"^--log-every must be a whole number, got True$"),
        ({"patience": 2, "eval_every": 0}, r"^--patience 2 counts evaluations during training, and --eval-every 0"),
        ({"patience": 2, "eval_every": "10min"}, r"^--patience 2 counts evaluations .* --eval-every 10min"),
        ({"save_every": 0}, r"^--save-every must be 1 or more, or a time like 10min, got 0$"),
        ({"save_every": "0s"}, r"^--save-every takes a number of steps or a time, got '0s': "),
        ({"eval_every": "often"}, r"^--eval-every takes a number of steps or a time, got 'often': "),
        ({"eval_every": -1}, r"^--eval-every takes a number of steps or a time, got -1: "),
    ],
)
def test_an_option_of_training_that_is_wrong_is_refused_in_one_paragraph(options, said):
    with pytest.raises(plimsoll.RecipeError, match=said) as refusal:
        plimsoll.train("stories", **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("option", ["eval_every", "save_every"])
def test_several_processes_have_no_common_clock(option):
    by_clock = TrainOptions(**{option: "10min"})
    by_clock.refuse_clock(1)
    TrainOptions(**{option: 10}).refuse_clock(2)
    flag = option.replace("_", "-")
    with pytest.raises(plimsoll.RecipeError, match=rf"^--{flag} 10min .* 2 processes.* number of steps$"):
        by_clock.refuse_clock(2)


@pytest.mark.parametrize("function", [plimsoll.train, plimsoll.loader])
def test_what_is_no_recipe_is_refused(function):
    verb = function.__name__
    with pytest.raises(plimsoll.RecipeError, match=rf"^plimsoll\.{verb} takes a recipe, the name of a .*, got a int$"):
        function(3)
    with pytest.raises(plimsoll.RecipeError, match=r"got a function\. A loss of your own is planned first"):
        function(lambda params, batch: 0.0)


def test_no_option_of_plan_or_train_hides_a_field_of_a_recipe():
    taken = {*options_of(plimsoll.plan), *options_of(plimsoll.train), *TrainOptions.__dataclass_fields__}
    for name in PRESETS:
        assert not taken & preset(name).options.keys(), name


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (plimsoll.plan, PlanOptions),
        (plimsoll.train, TrainOptions),
        (plimsoll.Run.train, TrainOptions),
        (Tune.train, TrainOptions),
    ],
)
def test_keywords_that_are_options_have_their_defaults(function, options):
    fields = {field.name: default_of(field) for field in dataclasses.fields(options)}
    keywords = inspect.signature(function).parameters
    shared = fields.keys() & keywords.keys()
    assert shared >= {"memory"}
    for name in shared:
        assert (keywords[name].default or None) == (fields[name] or None), name


def test_keywords_of_train_that_are_no_options_are_called_and_not_kept():
    assert {*options_of(plimsoll.train)} - {*TrainOptions.__dataclass_fields__} == {"on_log", "say"}


@pytest.mark.parametrize(("options", "printed"), [({}, "said\n"), ({"quiet": True}, "")])
def test_quiet_is_quiet(options, printed, monkeypatch, capsys):
    def prepare(recipe, given, say):
        say("said")
        raise Reached

    monkeypatch.setattr(follow, "prepare_run", prepare)
    with pytest.raises(Reached):
        plimsoll.train("stories", **options)
    assert capsys.readouterr().out == printed
