"""What a run of few steps is told before it trains."""

import re

import pytest

from chat_files import chats, write_records
from plimsoll.api.train import FEW_STEPS, prepare_data
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.flat import overridden
from tuning_files import small


@pytest.fixture
def recipe(tmp_path):
    recipe = small(tmp_path)
    write_records(tmp_path / "chats.jsonl", chats(50))
    return recipe


def said(recipe, tmp_path, **options):
    folder, lines = RunFolder(tmp_path / f"run-{len(options)}"), []
    folder.create()
    prepared = prepare_data(folder, overridden(recipe, options), lines.append)
    return prepared.steps, "\n".join(lines)


def test_fifty_chats_are_said_to_be_few_steps_with_what_makes_more_of_them(recipe, tmp_path):
    steps, text = said(recipe, tmp_path, epochs=3, batch_size=32)
    assert 1 < steps < 5
    (told,) = re.findall(rf"^{steps} optimizer steps of 32 examples are few .*", text, re.MULTILINE)
    assert "--batch-size" in told
    assert f"--steps {FEW_STEPS}" in told
    assert "--validation-id" in text, "nothing is held out of so few"


def test_so_few_steps_as_were_asked_for_are_not_remarked_upon(recipe, tmp_path):
    assert "are few" not in said(recipe, tmp_path, steps=3)[1]
    assert "are few" not in said(recipe, tmp_path, epochs=60, batch_size=4)[1]
