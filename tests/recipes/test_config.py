"""Recipes in TOML files: what `plimsoll config` prints is read again as the same recipe."""

import pytest

from plimsoll.cli.main import main
from plimsoll.errors import RecipeError
from plimsoll.recipes.config import to_toml
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset, read_config

OWN = """
import jax.numpy as jnp
import numpy as np
import optax
import plimsoll

recipe = plimsoll.recipe(
    init=lambda key: {"w": jnp.zeros(())},
    loss=lambda params, batch: (jnp.sum(params["w"] * batch["x"]), len(batch["x"])),
    data=lambda: {"x": np.ones(8, np.float32)},
    optimizer=optax.adamw(1e-3),
    batch_size=4,
    epochs=1,
)
"""


def file_of(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_after_it_was_written_and_read(name, tmp_path):
    recipe = preset(name)
    assert preset(file_of(tmp_path, to_toml(recipe, name))) == recipe


def test_every_value_survives(tmp_path):
    recipe = preset("code", learning_rate=3e-07, tokenizer='a "b" \\ ü.json', use_streaming=False, dataset_config=None)
    assert read_config(file_of(tmp_path, to_toml(recipe, "x.y"))) == recipe


def test_a_file_changes_options_of_the_preset_that_it_is_like(tmp_path):
    file = file_of(tmp_path, '[mine]\nlike = "code"\nwidth = 256\nsteps = "None"\nepochs = 2\n')
    assert read_config(file) == preset("code", width=256, steps=None, epochs=2)


def test_a_recipe_and_a_file_of_options_go_together(tmp_path, capsys):
    file = file_of(tmp_path, "[mine]\nwidth = 256\n")
    assert read_config(file, "code") == preset("code", width=256)
    assert main(["config", "code", "--config", file, "--heads", "8"]) == 0
    printed = capsys.readouterr().out
    assert read_config(file_of(tmp_path, printed, "printed.toml")) == preset("code", width=256, heads=8)


@pytest.mark.parametrize("words", [["longcontext", "--config", "small_32k"], ["--config=longcontext-small-32k"]])
def test_names_of_the_guides_are_presets(words, tmp_path, capsys):
    assert main(["config", *words]) == 0
    assert preset(file_of(tmp_path, capsys.readouterr().out)) == preset("longcontext-small-32k")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\nwidth = 256\n", "names no recipe"),
        ('[a]\nlike = "code"\nwdth = 1\n', "wdth: did you mean width"),
        ('[a]\nlike = "code"\nwidth = "wide"\n', "width"),
        ('[a]\nlike = "cod"\n', '"cod" is no preset'),
        ('[a]\nlike = "mine.toml"\n', '"mine.toml" is no preset'),
        ("[a]\nlike = 3\n", "3 is no preset"),
        ('[a]\nparts = "decoder"\n', "parts must name"),
        ('[a]\nparts = { model = "decoder" }\n', "parts must name"),
        ('[a]\nparts = { model = 3, data = "text", optimizer = "adamw" }\n', "parts must name"),
        ('[a]\nparts = { model = "decoder", data = "no", optimizer = "adamw" }\n', "'no'"),
        ("width = 256\n", "one table"),
        ("[a]\n[b]\n", "a, b"),
        ("", "nothing"),
        ("[a\n", "not TOML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(text, words, tmp_path):
    with pytest.raises(RecipeError) as error:
        read_config(file_of(tmp_path, text))
    assert words in str(error.value)


def test_a_file_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit('run')")
    with pytest.raises(RecipeError, match="is no preset"):
        read_config(file_of(tmp_path, '[a]\nlike = "own.py"\n'))


def test_two_recipes_a_missing_file_and_a_recipe_in_python_are_refused(tmp_path, capsys):
    file = file_of(tmp_path, '[mine]\nlike = "code"\n')
    (tmp_path / "own.py").write_text(OWN)
    for words in (["stories", "--config", file], [str(tmp_path / "none.toml")], [str(tmp_path / "own.py")]):
        assert main(["config", *words]) == 2
    refusals = capsys.readouterr().err
    assert "stories and --config" in refusals
    assert "No such file" in refusals
    assert "in Python" in refusals
