"""Data of a fine-tuning run: records, the tokenizer that encodes them, and what was encoded. No JAX.

`recipe` is a `recipe.Finetune`, which imports this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, require_same
from plimsoll.models.pretrained.find import HUB_ID, find_folder

if TYPE_CHECKING:
    from plimsoll.data.chat.encoded import Encoded, EncodedDocuments
    from plimsoll.data.chat.records import Records
    from plimsoll.data.chat.rows import Packing
    from plimsoll.data.chat.tokenizer import ChatTokenizer
    from plimsoll.recipes.base import Say

Part = Literal["data", "validation"]
"""Records of --dataset-id, or those of --validation-id; the name of their fact in data.json."""

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
        day: Day like 2026-11-25 that the template is told; the present one by default.

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


def encoded(recipe: Any, part: Part, tokenizer: ChatTokenizer, say: Say | None = None) -> Encoded:
    """Returns the encoded records of a part, from the cache where it has them; `say` gets lines of progress."""
    from plimsoll.data.chat.kept import encoded_examples
    from plimsoll.data.kept import NotKept

    try:
        return encoded_examples(_records(recipe, part), tokenizer, say=say or _quiet, **_reading(recipe, part))
    except NotKept as problem:
        raise DataError(str(problem)) from None


def encoded_of_run(recipe: Any, folder: Path, part: Part) -> Encoded:
    """Returns a part as `encoded` does, without a tokenizer where the cache has what was made when the run began.

    A tokenizer of 49,152 tokens takes 31 MiB, which a process that trains has no use for.

    Raises:
        DataError: The cache lost them, and the records are others than when the run began.
    """
    from plimsoll.data.chat.encoded import open_encoded
    from plimsoll.data.kept import kept

    before = _facts(folder).get(part)
    place = None if before is None else kept(Facts.from_json(before).digest)
    if place is not None:
        return open_encoded(place)
    again = encoded(recipe, part, tokenizer_of_run(folder))
    if before is not None:
        require_same(_source(recipe, part), before, again.made_with)
    return again


def held_out_of_run(recipe: Any, folder: Path) -> EncodedDocuments:
    """Returns what a run is evaluated on."""
    if recipe.validation_id is None:
        return encoded_of_run(recipe, folder, "data").validation
    return encoded_of_run(recipe, folder, "validation").train


def require_same_examples(recipe: Any, facts: Mapping[str, Any]) -> None:
    """Raises DataError where the records would be encoded otherwise than when the run began."""
    from plimsoll.data.chat.kept import examples_of

    tokenizer = tokenizer_of_model(recipe, find_folder(recipe.pretrained), day=facts["day"])
    for part in parts(recipe):
        now = examples_of(_records(recipe, part), tokenizer, **_reading(recipe, part))
        require_same(_source(recipe, part), facts[part], now)


def parts(recipe: Any) -> tuple[Part, ...]:
    """Returns the parts of the data that are in files of their own: what is learned, and what --validation-id names."""
    return ("data",) if recipe.validation_id is None else ("data", "validation")


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


def _source(recipe: Any, part: Part) -> str:
    return recipe.dataset_id if part == "data" else recipe.validation_id


def _records(recipe: Any, part: Part) -> Records:
    from plimsoll.data.chat.records import open_records

    return records(recipe) if part == "data" else open_records(recipe.validation_id)


def _reading(recipe: Any, part: Part) -> dict[str, Any]:
    return {"loss_on": recipe.loss_on, "hold_out": part == "data" and recipe.validation_id is None}


def _time(day: str | None) -> datetime | None:
    return None if day is None else datetime.fromisoformat(day)


def _quiet(_words: str) -> None:
    """Says nothing: what the cache holds was said when the run was prepared."""
