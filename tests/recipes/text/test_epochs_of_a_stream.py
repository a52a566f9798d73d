"""Epochs of a data set that is read over the network: their length follows from the count in its own info."""

import pytest

from making import made
from plimsoll.data.hub import HubStream
from plimsoll.errors import RecipeError
from plimsoll.recipes.text import data

CARD = """---
configs:
- config_name: default
  data_files: train.txt
dataset_info:
  features:
  - name: text
    dtype: string
  splits:
  - name: train
    num_bytes: 1
    num_examples: {count}
---
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Answers for the id org/set from a folder; returns a function that says how many examples its card counts."""
    folder = tmp_path / "org-set"
    folder.mkdir()
    (folder / "train.txt").write_text("".join(f"a line of a story, the {number}th\n" for number in range(400)))
    there = HubStream(name=str(folder), config=None, split="train", column="text")
    monkeypatch.setattr(HubStream, "open", lambda stream: there._open())
    count_rows = HubStream.count_rows
    monkeypatch.setattr(HubStream, "count_rows", lambda stream: count_rows(there))

    def counts(count):
        (folder / "README.md").write_text(CARD.format(count=count) if count else "")

    return counts


def prepared(folder, **options):
    folder.mkdir()
    sizes = {"seq_len": 8, "batch_size": 4, "vocab_size": 300, "width": 16, "layers": 1, "heads": 1}
    recipe = made("stories", dataset_id="org/set", **(sizes | options))
    return recipe.open(folder).prepare(lambda words: None)


def test_the_length_of_an_epoch_follows_from_the_count_and_the_beginning(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "WINDOWS_OF_A_STREAM", 200)
    hub(40_000)
    whole = prepared(tmp_path / "run", epochs=3)
    counted = prepared(tmp_path / "counted", epochs=3, max_examples=400)
    assert whole.steps == pytest.approx(100 * counted.steps, rel=0.05)
    assert whole.facts["description"].startswith("about 39,600 documents")


def test_epochs_are_refused_where_no_one_counted(hub, tmp_path):
    hub(None)
    with pytest.raises(RecipeError, match=r"no count of the split train.*--steps 10000"):
        prepared(tmp_path / "run", epochs=3)
    assert prepared(tmp_path / "steps", steps=7).steps == 7
