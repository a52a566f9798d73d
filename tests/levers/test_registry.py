"""One record makes a lever known everywhere: so is a toy lever, whose one file is tests/support/toy_lever.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import jax.numpy as jnp
import pytest

import toy_lever
from planner_examples import PROCESS, STATIC, FakeCompiler, activation_bytes, plan, problem, search
from plimsoll.api.planning.pins import require_levers, require_supported
from plimsoll.api.rungs import rungs
from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse_with_recipe
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.levers import registry
from plimsoll.levers.lever import CLASSES, Lever
from plimsoll.optimizers.adamw import AdamW
from plimsoll.planned import Plan
from plimsoll.planner.space import combinations, same_step
from plimsoll.recipes.own.recipe import recipe
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registry import preset
from plimsoll.report.tables import lever_rows, plan_words
from plimsoll.types import Compute, Storage
from plimsoll.units import GIB, MIB

STORIES = preset("stories").replace(seq_len=256, batch_size=16)


class WithNorms(Recipe):
    @property
    def hints(self):
        hints = super().hints
        return replace(hints, levers=(*hints.levers, "norms"))


@pytest.fixture
def toy():
    with toy_lever.registered() as lever:
        yield lever


def train_options(*words):
    return parse_with_recipe(TrainOptions, ["stories", *words], command="train")


def saving(plan):
    """Norms in bfloat16 are half of what is kept: more than any remat saves."""
    return 20 * MIB + activation_bytes(plan) // (2 if plan.lever("norms") == "bfloat16" else 1)


def found(budget, compiler=None, **changes):
    about = {"supported": ("remat", "loss_chunk", "norms")} | changes
    return search(problem(budget, **about), compiler or FakeCompiler(temporaries=saving))


def test_it_is_an_option_with_help(toy, capsys):
    assert train_options("--norms", "bfloat16").pins == {"norms": "bfloat16"}
    with pytest.raises(SystemExit):
        train_options("--help")
    shown = capsys.readouterr().out
    assert "--norms" in shown
    assert "Arithmetic of the norms." in shown
    with pytest.raises(RecipeError, match="--norms takes one of float32, bfloat16, got 'int8'"):
        train_options("--norms", "int8")


def test_pins_are_checked(toy):
    require_levers({"norms": "bfloat16"})
    with pytest.raises(RecipeError, match="--norms cannot be 'int8'"):
        require_levers({"norms": "int8"})
    with pytest.raises(RecipeError, match="--norms bfloat16 would change nothing: the loss of stories makes no use of"):
        require_supported(STORIES, {"norms": "bfloat16"})
    require_supported(STORIES, {"norms": "float32"})
    require_supported(WithNorms(**STORIES.parts), {"norms": "bfloat16"})
    own = recipe(init=dict, loss=dict, data=dict, optimizer=AdamW(), supported=["norms"])
    assert own.origin.supported == ("norms",)


def test_the_search_tries_it_and_chooses_it_where_its_bytes_are_needed(toy):
    assert found(GIB).plan.lever("norms") == "float32", "of two that are as fast, the one that leaves the numbers alone"
    with pytest.raises(BudgetError) as refused:
        found(PROCESS + STATIC.state_bytes, pins={"norms": "float32"})
    tight = found(refused.value.floor_bytes - MIB)
    assert tight.plan.lever("norms") == "bfloat16"
    assert tight.plan.numerics == "mixed"
    assert tight.ledger.predicted_peak_bytes <= refused.value.floor_bytes - MIB


def space():
    compiler = FakeCompiler()
    return combinations(problem(GIB, supported=("remat", "loss_chunk", "norms")), compiler.rates(), compiler.static)


def test_what_its_record_says_it_goes_with_is_all_that_is_asked():
    apart = replace(toy_lever.NORMS, goes_with=lambda levers, _: levers["norms"] == "float32" or levers["loss_chunk"])
    with toy_lever.registered(apart):
        compiler = FakeCompiler(temporaries=saving)
        with pytest.raises(BudgetError):
            found(PROCESS, compiler)
        both = {(plan.lever("norms"), plan.lever("loss_chunk") > 0) for one in space() for plan in one.plans.values()}
        assert both == {("float32", False), ("float32", True), ("bfloat16", True)}
        assert {(plan.lever("norms"), plan.lever("loss_chunk") > 0) for _, plan in compiler.asked} <= both


def test_what_its_record_refuses_is_refused_where_it_is_pinned_and_else_not_tried():
    def on_a_cpu(problem, _rates, value):
        return f"is refused on {problem.chip}. Leave it out" if value == "bfloat16" else None

    with toy_lever.registered(replace(toy_lever.NORMS, refused=on_a_cpu)):
        compiler = FakeCompiler(temporaries=saving)
        with pytest.raises(RecipeError, match=r"^--norms bfloat16 is refused on cpu\. Leave it out$"):
            found(GIB, compiler, pins={"norms": "bfloat16"})
        assert compiler.asked == []
        assert found(GIB, compiler, pins={"norms": "float32"}).plan.lever("norms") == "float32"
        assert {one.levers["norms"] for one in space()} == {"float32"}


@pytest.mark.parametrize("changes", [{"numerics": "exact"}, {"supported": ("remat", "loss_chunk")}], ids=str)
def test_it_is_left_alone_where_the_numbers_or_the_recipe_do_not_allow_it(toy, changes):
    compiler = FakeCompiler(temporaries=saving)
    with pytest.raises(BudgetError):
        found(PROCESS, compiler, **changes)
    assert {plan.lever("norms") for _, plan in compiler.asked} <= {"float32"}


def test_a_plan_has_it_shows_it_and_survives_json(toy):
    pulled = plan().with_levers(norms="bfloat16")
    again = Plan.from_dict(json.loads(json.dumps(pulled.to_dict())))
    assert again == pulled
    assert hash(again) == hash(pulled)
    assert (again.to_dict()["norms"], again.levers["norms"], again.numerics) == ("bfloat16", "bfloat16", "mixed")
    assert Plan.from_dict(pulled.to_dict() | {"micro_batch": 2, "accumulation": 8}).lever("norms") == "bfloat16"
    with pytest.raises(TypeError, match=r"a plan has no lever norm: the file or package of its recipe"):
        Plan.from_dict(pulled.to_dict() | {"norm": "bfloat16"})
    assert same_step(pulled) != same_step(plan())
    assert Plan.from_dict(json.loads(json.dumps(same_step(pulled).to_dict()))).lever("norms") == "bfloat16"
    assert "norms" not in lever_rows(plan())
    assert lever_rows(pulled)["norms"] == "bfloat16"
    assert plan_words(pulled).endswith("norms bfloat16")


def test_a_model_sees_it(toy):
    compute = plan().with_levers(norms="bfloat16").compute("cpu")
    assert toy_lever.normalised(jnp.ones((2, 8)), compute).dtype == jnp.bfloat16
    whole, half = (toy_lever.norm_bytes(tokens=4, width=8, norms=norms) for norms in ("float32", "bfloat16"))
    assert half == whole // 2
    with pytest.raises(KeyError):
        Compute().lever("norms")


def test_a_ladder_has_its_rung(toy):
    ladder, left_out = rungs(STORIES)
    assert left_out["norms-16"] == "the recipe's loss makes no use of this lever"
    assert ladder[0].pins["norms"] == "float32"
    ladder, _ = rungs(WithNorms(**STORIES.parts))
    names = [rung.name for rung in ladder]
    assert names.index("bfloat16") < names.index("norms-16") < names.index("optimizer-8")
    rung = ladder[names.index("norms-16")]
    assert (rung.numerics, rung.words, rung.pins["norms"]) == ("mixed", "norms in bfloat16", "bfloat16")


def test_a_record_that_contradicts_itself_is_refused(toy):
    with pytest.raises(ValueError, match="there is a lever norms already"):
        registry.register(toy_lever.NORMS)
    with pytest.raises(ValueError, match="nothing would choose others"):
        registry.register(replace(toy_lever.NORMS, name="others", by_itself=True))
    with pytest.raises(ValueError, match="'int8' is no value of others"):
        registry.register(replace(toy_lever.NORMS, name="others", plain="int8"))


@pytest.mark.parametrize("lever", registry.LEVERS.values(), ids=list(registry.LEVERS))
def test_every_record_agrees_with_the_plan_and_the_search(lever: Lever):
    if isinstance(read := Plan.__dict__.get(lever.name), property):
        assert get_type_hints(read.fget)["return"] == lever.type
    assert lever.plain is None or lever.allows(lever.plain)
    assert not lever.allows("no such value")
    assert lever.by_itself or lever in registry.searched() or lever in registry.chained(), "nothing would search it"
    assert lever.help[0].isupper()
    assert lever.help.endswith(".")
    classes = [CLASSES.index(lever.numerics(value)) for value in lever.values]
    assert classes == sorted(classes) or lever.type is bool


def test_every_combination_says_what_each_searched_lever_is():
    """A plan is made of a combination: a lever that one of them left out would keep a default that nobody chose."""
    expected = {name for name, lever in registry.LEVERS.items() if not lever.by_itself}
    compiler = FakeCompiler()
    for one in combinations(problem(GIB, numerics="compressed"), compiler.rates(), compiler.static):
        assert one.levers.keys() == expected


def test_storage_and_its_levers_have_the_same_values():
    hints = get_type_hints(Storage)
    assert {name: registry.LEVERS[name].type for name in hints} == hints


def test_records_import_nothing_heavy():
    folder = Path(registry.__file__).parent
    for path in [folder / "lever.py", folder / "registry.py", *(folder / "records").glob("*.py")]:
        assert "\nimport jax" not in path.read_text(), path
