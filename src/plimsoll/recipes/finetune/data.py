"""Data of a fine-tuning run: records, the tokenizer that encodes them, and what was encoded. No JAX.

`recipe` is a `recipe.Finetune`, which imports this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, require_same
from plimsoll.models.pretrained.find import HUB_ID, find_folder

if TYPE_CHECKING:
    from plimsoll.data.chat.encoded import Encoded, EncodedDocuments
    from plimsoll.data.chat.records import Records
    from plimsoll.data.chat.rows import Packing
    from plimsoll.data.chat.tokenizer import ChatTokenizer
    from plimsoll.recipes.base import Say

TOKENIZER = "tokenizer"
"""Folder of a run with the tokenizer's files."""


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of a model that decide what it computes."""
    return [folder / "config.json", *sorted(folder.glob("*.safetensors"))]


def tokenizer_of_model(recipe: Any, folder: Path, *, day: str | None = None) -> ChatTokenizer:
    """Returns the model's tokenizer, with the template of --chat-template where one is named.

    Args:
        recipe: The recipe.
        folder: The model's.
        day: Day like 2026-11-25 that the template is told; today by default.

    Raises:
        DataError: It has more ids than the model rows for them.
    """
    from plimsoll.data.chat.tokenizer import load_chat_tokenizer

    tokenizer = load_chat_tokenizer(folder, chat_template=recipe.chat_template, now=_time(day))
    if tokenizer.size > recipe.shape.vocab:
        raise DataError(
            f"the tokenizer in {folder} has {tokenizer.size:,} ids, and the model {recipe.shape.vocab:,} rows for"
            " them: copy the tokenizer.json that belongs to it"
        )
    return tokenizer


def tokenizer_of_run(folder: Path) -> ChatTokenizer:
    """Returns the tokenizer that a run keeps in its folder, its template told the day on which the run began."""
    from plimsoll.data.chat.tokenizer import load_chat_tokenizer

    return load_chat_tokenizer(folder / TOKENIZER, now=_time(_facts(folder).get("day")))


def _facts(folder: Path) -> Mapping[str, Any]:
    """Returns what was noted of the data when the run began."""
    path = folder / "data.json"
    return json.loads(path.read_text("utf-8"))["facts"] if path.is_file() else {}


def examples(recipe: Any, tokenizer: ChatTokenizer, say: Say | None = None) -> Encoded:
    """Returns the encoded records of --dataset-id, from the cache where it has them; `say` gets lines of progress."""
    return _kept(records(recipe), tokenizer, say, **_reading(recipe))


def given_validation(recipe: Any, tokenizer: ChatTokenizer, say: Say | None = None) -> Encoded | None:
    """Returns the encoded records of --validation-id; None where none is named."""
    from plimsoll.data.chat.records import open_records

    if recipe.validation_id is None:
        return None
    return _kept(open_records(recipe.validation_id), tokenizer, say, loss_on=recipe.loss_on, hold_out=False)


def examples_of_run(recipe: Any, folder: Path) -> Encoded:
    """Returns what a run learns from, as `examples` does, without a tokenizer where the cache still has it.

    A tokenizer of 49,152 tokens takes 31 MiB, which a process that trains has no use for.

    Raises:
        DataError: The cache lost them, and the records are others today.
    """
    if (kept := _of_run(folder, "data")) is not None:
        return kept
    return _noted(folder, "data", examples(recipe, tokenizer_of_run(folder)), recipe.dataset_id)


def held_out_of_run(recipe: Any, folder: Path) -> EncodedDocuments:
    """Returns what a run is evaluated on, without a tokenizer where the cache still has it."""
    if recipe.validation_id is None:
        return examples_of_run(recipe, folder).validation
    if (kept := _of_run(folder, "validation")) is not None:
        return kept.train
    given = given_validation(recipe, tokenizer_of_run(folder))
    assert given is not None
    return _noted(folder, "validation", given, recipe.validation_id).train


def _noted(folder: Path, fact: str, encoded: Encoded, source: str) -> Encoded:
    """Returns what was encoded again, where that is what was noted when the run began."""
    if then := _facts(folder).get(fact):
        require_same(source, then, encoded.made_with)
    return encoded


def _of_run(folder: Path, fact: str) -> Encoded | None:
    """Returns the folder of the cache that was made when a run began; None where it is gone, or damaged."""
    from plimsoll.data.chat.encoded import open_encoded
    from plimsoll.data.kept import kept

    then = _facts(folder).get(fact)
    place = None if then is None else kept(Facts.from_json(then).digest)
    return None if place is None else open_encoded(place)


def require_same_examples(recipe: Any, facts: Mapping[str, Any]) -> None:
    """Raises DataError where the records would be encoded otherwise than when the run began."""
    from plimsoll.data.chat.kept import examples_of
    from plimsoll.data.chat.records import open_records

    tokenizer = tokenizer_of_model(recipe, find_folder(recipe.pretrained), day=facts["day"])
    require_same(recipe.dataset_id, facts["data"], examples_of(records(recipe), tokenizer, **_reading(recipe)))
    if recipe.validation_id is not None:
        given = open_records(recipe.validation_id)
        now = examples_of(given, tokenizer, loss_on=recipe.loss_on, hold_out=False)
        require_same(recipe.validation_id, facts["validation"], now)


def require_batch(recipe: Any, packing: Packing) -> None:
    """Raises DataError for fewer rows than a batch has."""
    if packing.rows < recipe.effective_batch:
        raise DataError(
            f"{recipe.dataset_id} fills {packing.rows:,} rows of {recipe.seq_len:,} tokens, fewer than the"
            f" {recipe.effective_batch:,} of one batch: lower --batch-size or --seq-len"
        )


def require_adapter(recipe: Any) -> None:
    """Raises DataError for an --init-from that is not of this model and these settings."""
    if recipe.init_from is None:
        return
    from plimsoll.models.pretrained.adapters import read_adapter

    _, settings = read_adapter(recipe.init_from, recipe.shape, rank=recipe.lora_rank, targets=recipe.adapted)
    both = (settings.base, recipe.pretrained)
    if all(HUB_ID.fullmatch(name) and not Path(name).exists() for name in both) and both[0].lower() != both[1].lower():
        raise DataError(
            f"the adapter in {recipe.init_from} says that it belongs to {settings.base}, and --pretrained is"
            f" {recipe.pretrained}: name its own model, or, where they are the same, correct base_model_name_or_path in"
            " its adapter_config.json"
        )
    if abs(settings.scale - recipe.adapter.scale) > 1e-6 * recipe.adapter.scale:
        raise DataError(
            f"the adapter in {recipe.init_from} is scaled by {settings.scale:g}, and this run's by"
            f" {recipe.adapter.scale:g}: give --lora-alpha {settings.alpha:g}"
            + (" --rslora" if settings.rslora else " --no-rslora" if recipe.rslora else "")
        )


def records(recipe: Any) -> Records:
    """Returns the records of --dataset-id.

    Raises:
        RecipeError: None is named.
    """
    from plimsoll.data.chat.records import open_records

    if not recipe.dataset_id:
        raise RecipeError(
            "--dataset-id is missing: name a .jsonl or .parquet file of records with `messages`, `prompt` and"
            " `completion`, or `text`"
        )
    return open_records(
        recipe.dataset_id, config=recipe.dataset_config, split=recipe.split, max_examples=recipe.max_examples
    )


def _reading(recipe: Any) -> dict[str, Any]:
    return {"loss_on": recipe.loss_on, "hold_out": recipe.validation_id is None}


def _kept(records: Records, tokenizer: ChatTokenizer, say: Say | None, **how: Any) -> Encoded:
    from plimsoll.data.chat.kept import encoded_examples
    from plimsoll.data.kept import NotKept

    try:
        return encoded_examples(records, tokenizer, say=say or _quiet, **how)
    except NotKept as problem:
        raise DataError(str(problem)) from None


def _time(day: str | None) -> datetime | None:
    return None if day is None else datetime.fromisoformat(day)


def _quiet(_words: str) -> None:
    """Says nothing: what the cache holds was said when the run was prepared."""
