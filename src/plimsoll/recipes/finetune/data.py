"""Records of chats, pairs or texts as data of a run: encoded by the model's tokenizer, packed into rows. No JAX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, require_same
from plimsoll.models.pretrained.find import find_folder
from plimsoll.options import Count, FilePath, Ge, PositiveCount
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import DocumentSpec
from plimsoll.types import Source
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.data.chat.encoded import Encoded, EncodedDocuments
    from plimsoll.data.chat.records import Records
    from plimsoll.data.chat.rows import PackedRows
    from plimsoll.data.chat.tokenizer import ChatTokenizer

PLANNED_DOCUMENTS = 100_000
"""Documents of a data set that nobody has named yet."""
PLANNED_TOKENS = 300
"""Tokens of one of them."""
READER_BYTES = 4 * MIB
"""What reading the encoded examples leaves in the heap."""
TOKENIZER = "tokenizer"
"""Folder of a run with the tokenizer's files."""

RecordSet = Literal["data", "validation"]
"""Records of --dataset-id, or those of --validation-id; the name of their fact in data.json."""


@dataclass(frozen=True, kw_only=True)
class Chat(Data):
    """Records of conversations, prompts with completions, or texts, packed into rows of whole documents."""

    name = "chat"
    gives = DocumentSpec
    no_validation = "no record was held out of a data set this small (1 in 100 is). Name one with --validation-id"

    dataset_id: FilePath = ""
    """Records to learn from: a .jsonl, .json or .parquet file, a folder of them, or a Hugging Face data set. Each
    record has `messages`, `prompt` and `completion`, or `text`. Planning needs none."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. By default its own default."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    validation_id: FilePath | None = None
    """Records to evaluate on. By default 1 in 100 of those in --dataset-id."""
    max_examples: PositiveCount | None = None
    """Most records to use. By default all."""
    validation_tokens: PositiveCount = 200_000
    """Most held-out tokens to evaluate on."""
    loss_on: Literal["assistant", "all"] = "assistant"
    """Tokens that count in the loss: those of the assistant or the completion, or all. In a `text` all count."""
    chat_template: FilePath | None = None
    """File with a chat template (jinja). By default the tokenizer's own."""
    seq_len: Annotated[Count, Ge(2)] = 2048
    """Tokens of a training sequence, into which as many records are packed as fit."""
    truncate: bool = True
    """Cut records that are longer than a sequence. --no-truncate refuses them."""

    def spec(self, needs: Needs) -> DocumentSpec:
        from plimsoll.data.chat.row_bytes import DTYPES

        if needs.tokenizer is None or needs.vocabulary is None:
            raise RecipeError(
                "the data chat is encoded by a published model's tokenizer, and this model has none: take the model"
                " pretrained, or the data text"
            )
        if needs.longest is not None and self.seq_len > needs.longest:
            raise RecipeError(
                f"--seq-len {self.seq_len:,} is more than the {needs.longest:,} tokens that {needs.tokenizer} was made"
                " to read at once: lower it to that, or name a model that reads more"
            )
        return DocumentSpec(
            arrays={name: ((self.seq_len,), dtype) for name, dtype in DTYPES.items()},
            tokens=self.seq_len,
            vocab=needs.vocabulary,
            length=self.seq_len,
        )

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        from plimsoll.data.chat.row_bytes import rows_bytes

        known = {} if prepared is None else prepared.facts["packing"]
        rows = rows_bytes(
            documents=known.get("documents", PLANNED_DOCUMENTS),
            tokens=known.get("tokens", PLANNED_DOCUMENTS * PLANNED_TOKENS),
            seq_len=self.seq_len,
            batch_size=reading.batch_size,
            prefetch=prefetch,
        )
        return HostMemory(bytes=rows + READER_BYTES, advice="a smaller --batch-size")

    def open(self, folder: Path, reading: Reading) -> ChatDataset:
        if not self.dataset_id:
            raise RecipeError(
                "--dataset-id is missing: name a .jsonl or .parquet file of records with `messages`, `prompt` and"
                " `completion`, or `text`"
            )
        return ChatDataset(self, folder, reading)

    def imports(self) -> tuple[str, ...]:
        return ("plimsoll.data.chat.rows",)

    def records(self, part: RecordSet) -> Records:
        """Returns the records of a part."""
        from plimsoll.data.chat.records import open_records

        if part == "validation":
            return open_records(self.source_of(part))
        return open_records(
            self.dataset_id, config=self.dataset_config, split=self.split, max_examples=self.max_examples
        )

    def source_of(self, part: RecordSet) -> str:
        """Returns the name of the records of a part."""
        name = self.dataset_id if part == "data" else self.validation_id
        return name or ""

    @property
    def record_sets(self) -> tuple[RecordSet, ...]:
        """Parts of the data that are in files of their own: what is learned, and what --validation-id names."""
        return ("data",) if self.validation_id is None else ("data", "validation")

    def encoding(self, part: RecordSet) -> dict[str, Any]:
        """Returns how the records of a part are encoded, beside their tokenizer."""
        return {"loss_on": self.loss_on, "hold_out": part == "data" and self.validation_id is None}


@dataclass(frozen=True)
class ChatDataset:
    """The records of one run."""

    data: Chat
    folder: Path
    reading: Reading

    def prepare(self, say: Say) -> Prepared:
        from plimsoll.data.chat.tokenizer import save_chat_tokenizer

        # The records are encoded by the model's tokenizer, which the run keeps.
        data, model = self.data, find_folder(self.reading.needs.tokenizer or "")
        tokenizer = self._tokenizer_of_model(model)
        save_chat_tokenizer(model, self.folder / TOKENIZER, chat_template=data.chat_template)
        encoded = {part: self._encoded(part, tokenizer, say) for part in data.record_sets}

        # They are packed into rows.
        learned = encoded["data"]
        rows = self._rows(learned)
        packing = rows.packing()
        for line in packing.lines():
            say(line)
        batch = self.reading.batch_size
        if packing.rows < batch:
            raise DataError(
                f"{data.dataset_id} fills {packing.rows:,} rows of {data.seq_len:,} tokens, fewer than the {batch:,} of"
                " one batch: lower --batch-size or --seq-len"
            )
        held_out = encoded["validation"].train if "validation" in encoded else learned.validation
        if not held_out.count:
            say(f"validation: none, and `plimsoll evaluate` will refuse this run: {data.no_validation}")

        # Each epoch packs its rows anew, in a few more or fewer than another.
        length = self.reading.length
        if length.steps is not None:
            steps, rows_per_epoch = length.steps, packing.rows
        else:
            epochs = length.epochs_of(data.dataset_id)
            rows_read = rows.rows_of(epochs)
            steps, rows_per_epoch = max(1, int(rows_read / batch)), rows_read / epochs or packing.rows
        facts = {
            "description": f"{packing.documents:,} documents, {packing.tokens:,} tokens in {data.dataset_id}",
            "packing": asdict(packing),
            **{part: examples.made_with.to_json() for part, examples in encoded.items()},
            "conversations": learned.conversations,
            "day": learned.day,
        }
        return Prepared(steps=steps, steps_per_epoch=rows_per_epoch / batch, facts=facts)

    def require_same(self, prepared: Prepared, *, training: bool) -> None:
        """Raises DataError where the records would be encoded otherwise than when the run began."""
        from plimsoll.data.chat.kept import examples_of

        if not training:
            return
        facts = prepared.facts
        tokenizer = self._tokenizer_of_model(find_folder(self.reading.needs.tokenizer or ""), day=facts["day"])
        for part in self.data.record_sets:
            now = examples_of(self.data.records(part), tokenizer, **self.data.encoding(part))
            require_same(self.data.source_of(part), facts[part], now)

    def source(self, *, prefetch: int) -> Source:
        from plimsoll.data.loader import Loader

        return Loader(self._rows(self.encoded_before("data")), prefetch=prefetch)

    def validation(self, *, examples: int) -> Iterable[Batch]:
        from plimsoll.data.chat.rows import validation_rows

        data = self.data
        return validation_rows(
            self.held_out(), seq_len=data.seq_len, batch_size=examples, max_tokens=data.validation_tokens
        )

    def held_out(self) -> EncodedDocuments:
        """Returns what the run is evaluated on."""
        if self.data.validation_id is None:
            return self.encoded_before("data").validation
        return self.encoded_before("validation").train

    def encoded_before(self, part: RecordSet) -> Encoded:
        """Returns encoded records, without a tokenizer where the cache has what was made when the run began.

        A tokenizer of 49,152 tokens takes 31 MiB, which a process that trains has no use for.

        Raises:
            DataError: The cache lost them, and the records are others than when the run began.
        """
        from plimsoll.data.chat.encoded import open_encoded
        from plimsoll.data.kept import kept

        before = _facts(self.folder).get(part)
        place = None if before is None else kept(Facts.from_json(before).digest)
        if place is not None:
            return open_encoded(place)
        again = self._encoded(part, tokenizer_of_run(self.folder), _quiet)
        if before is not None:
            require_same(self.data.source_of(part), before, again.made_with)
        return again

    def _encoded(self, part: RecordSet, tokenizer: ChatTokenizer, say: Say) -> Encoded:
        """Returns encoded records, from the cache where it has them."""
        from plimsoll.data.chat.kept import encoded_examples
        from plimsoll.data.kept import NotKept

        try:
            return encoded_examples(self.data.records(part), tokenizer, say=say, **self.data.encoding(part))
        except NotKept as problem:
            raise DataError(str(problem)) from None

    def _tokenizer_of_model(self, folder: Path, *, day: str | None = None) -> ChatTokenizer:
        """Returns the model's tokenizer, with the template of --chat-template where one is named.

        Args:
            folder: The model's.
            day: Day like 2026-11-25 that the template is told; the present one by default.

        Raises:
            DataError: It has more ids than the model rows for them.
        """
        from plimsoll.data.chat.tokenizer import load_chat_tokenizer

        tokenizer = load_chat_tokenizer(folder, chat_template=self.data.chat_template, now=_time(day))
        vocabulary = self.reading.needs.vocabulary
        if vocabulary is not None and tokenizer.size > vocabulary:
            raise DataError(
                f"the tokenizer in {folder} has {tokenizer.size:,} ids, and the model {vocabulary:,} rows for them:"
                " copy the tokenizer.json that belongs to it"
            )
        return tokenizer

    def _rows(self, encoded: Encoded) -> PackedRows:
        from plimsoll.data.chat.rows import PackedRows

        return PackedRows(
            encoded.train,
            seq_len=self.data.seq_len,
            batch_size=self.reading.batch_size,
            seed=self.reading.seed,
            truncate=self.data.truncate,
            name=self.data.dataset_id,
        )


def tokenizer_of_run(folder: Path) -> ChatTokenizer:
    """Returns the tokenizer that a run keeps in its folder, its template told the day on which the run began."""
    from plimsoll.data.chat.tokenizer import load_chat_tokenizer

    return load_chat_tokenizer(folder / TOKENIZER, now=_time(_facts(folder).get("day")))


def _facts(folder: Path) -> Mapping[str, Any]:
    """Returns what was noted of the data when the run began."""
    path = folder / "data.json"
    return json.loads(path.read_text("utf-8"))["facts"] if path.is_file() else {}


def _time(day: str | None) -> datetime | None:
    return None if day is None else datetime.fromisoformat(day)


def _quiet(_words: str) -> None:
    """Says nothing: what the cache holds was said when the run was prepared."""
