"""Local text of a run, tokenised before it begins; where the cache has no room for it, it is streamed."""

import dataclasses
import itertools
import json
import shutil
from collections import Counter

import numpy as np
import pytest

from making import made
from plimsoll.data.loader_bytes import MOST_THREADS, THREAD_BYTES
from plimsoll.data.packed.packed import open_packed
from plimsoll.data.text.opening import text_bytes
from plimsoll.errors import DataError
from plimsoll.recipes.text.data import KEPT, WINDOWS

WORDS = list("abcdefghijklmnop")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    texts = [f"{' '.join(WORDS[i % 9 :])} {i}" for i in range(600)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    sizes = {"seq_len": 16, "batch_size": 4, "vocab_size": 300, "width": 16, "layers": 1, "heads": 1}
    return made("stories", dataset_id=str(tmp_path / "a.txt"), steps=2000, shuffle_buffer_size=50, **sizes)


def prepared(recipe, folder):
    """Prepares a folder as `api.train.prepare_data` leaves it."""
    folder.mkdir()
    found = recipe.open(folder).prepare(lambda words: None)
    (folder / "data.json").write_text(json.dumps(found.to_json()))
    return found


def memory(recipe, prepared):
    return recipe.data.memory(prepared, recipe.reading, prefetch=2)


def taken(source, count):
    try:
        return [batch["input_ids"].tolist() for batch in itertools.islice(source, count)]
    finally:
        source.close()


def test_a_run_reads_from_the_cache_all_windows_of_its_text(recipe, tmp_path):
    facts = prepared(recipe, tmp_path / "run").facts
    source = recipe.open(tmp_path / "run").source(prefetch=2)
    assert source.state()["facts"]["tokens"] > 600
    rows = np.concatenate(taken(source, facts[WINDOWS] // 4)).tolist()
    packed = open_packed(next((tmp_path / "cache/tokens").glob("*/meta.json")).parent)
    windows = packed.rows(np.arange(facts[WINDOWS]), length=16, stride=16).tolist()
    assert len(rows) == len(windows) // 4 * 4
    assert not Counter(map(tuple, rows)) - Counter(map(tuple, windows))


@pytest.mark.parametrize("length", [{"steps": 3}, {"epochs": 2.0, "steps": None}])
def test_a_text_of_fewer_windows_than_a_batch_is_refused_however_few_steps_are_asked_for(recipe, tmp_path, length):
    with pytest.raises(DataError, match=r"fewer than the 5,000 of one batch.*--batch-size"):
        prepared(recipe.replace(batch_size=5_000, **length), tmp_path / "run")


def test_tokens_that_were_removed_from_the_cache_are_made_again(recipe, tmp_path):
    prepared(recipe, tmp_path / "run")
    before = taken(recipe.open(tmp_path / "run").source(prefetch=0), 20)
    shutil.rmtree(tmp_path / "cache")
    assert taken(recipe.open(tmp_path / "run").source(prefetch=0), 20) == before
    assert list((tmp_path / "cache/tokens").glob("*/meta.json"))


@pytest.mark.parametrize("length", [{"steps": 2000}, {"epochs": 2.0, "steps": None}])
def test_a_cache_that_cannot_be_written_to_makes_a_run_stream_and_it_is_said_once(recipe, tmp_path, length):
    recipe = recipe.replace(**length)
    (tmp_path / "cache").write_text("a file")
    said = []
    (tmp_path / "other").mkdir()
    found = recipe.open(tmp_path / "other").prepare(said.append)
    (tmp_path / "other/data.json").write_text(json.dumps(found.to_json()))
    assert KEPT not in found.facts
    (line,) = (words for words in said if words.startswith("tokens: "))
    assert "as training reads it" in line
    assert str(tmp_path / "cache") in line
    source = recipe.open(tmp_path / "other").source(prefetch=0)
    assert source.state()["facts"]["shuffle_buffer_size"] == 50
    assert len(taken(source, 20)) == 20


def test_a_run_that_does_not_read_to_the_end_streams_and_epochs_count_what_was_kept(recipe, tmp_path):
    short = recipe.replace(steps=3)
    assert KEPT not in prepared(short, tmp_path / "short").facts
    by_steps = prepared(recipe, tmp_path / "run")
    epochs = prepared(recipe.replace(steps=None, epochs=2.0), tmp_path / "epochs")
    assert epochs.facts[KEPT] == by_steps.facts[KEPT]
    streamed = recipe.replace(steps=None, epochs=2.0, use_streaming=False)
    assert KEPT not in (counted := prepared(streamed, tmp_path / "memory")).facts
    assert (epochs.steps, epochs.facts["tokens"]) == (counted.steps, counted.facts["tokens"])


def test_the_ledger_has_no_shuffle_buffer_where_text_is_kept_and_threads_only_beside_a_card(recipe, tmp_path):
    wide = recipe.replace(shuffle_buffer_size=100_000)
    kept = prepared(wide, tmp_path / "run")
    bytes_kept = memory(wide, kept).bytes
    not_held_out = wide.data.validation_tokens - kept.facts["validation_tokens"]  # known once the text was read
    estimated = text_bytes(wide.data.documents) // 4 // 16 - kept.facts[WINDOWS]
    assert memory(wide, None).bytes == bytes_kept + 4 * not_held_out + 8 * estimated
    assert memory(wide, kept).beside_accelerator == 0
    old = dataclasses.replace(kept, facts={name: fact for name, fact in kept.facts.items() if name != KEPT})
    assert memory(wide, old).bytes > bytes_kept + 100_000 * 2 * 17
    assert memory(wide, old).beside_accelerator == (MOST_THREADS - 1) * THREAD_BYTES
