"""Training data of chats, prompts with completions, or texts: encoded by the model's tokenizer, packed into sequences.

Imports no JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, require_same
from plimsoll.models.pretrained.find import find_folder
from plimsoll.options import Count, FilePath, Ge, PositiveCount
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import DocumentSpec
from plimsoll.types import Source

if TYPE_CHECKING:
    from plimsoll.data.chat.encoded import Encoded
    from plimsoll.data.chat.records import Records
    from plimsoll.data.chat.rows import PackedRows
    from plimsoll.data.chat.tokenizer import ChatTokenizer

PLANNED_DOCUMENTS = 100_000
"""Estimated number of documents, until a data set is prepared."""
PLANNED_TOKENS = 300
"""Estimated tokens of a document, until a data set is prepared."""
TOKENIZER = "tokenizer"
"""Name of the folder of tokenizer files in a run's folder."""

LEARNED, HELD_OUT = "data", "validation"
"""Keys in `Prepared.facts` of the records of --dataset-id and of --validation-id."""


@dataclass(frozen=True, kw_only=True)
class Chat(Data):
    """Conversations, prompts with completions, or texts. As many as fit are packed into a training sequence."""

    name = "chat"
    gives = DocumentSpec
    named_by = "dataset_id"
    missing = "name a .jsonl or .parquet file of records with `messages`, `prompt` and `completion`, or `text`"
    no_validation = "no record was held out of a data set this small (1 in 100 is). Name one with --validation-id"

    dataset_id: FilePath = ""
    """Records to learn from: a .jsonl, .json or .parquet file, a folder of them, or a Hugging Face data set. Each
    record has `messages`, `prompt` and `completion`, or `text`. Planning needs none."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. Without it, the data set's default."""
    split: str = "train"
    """Split of a Hugging Face data set."""
    validation_id: FilePath | None = None
    """Records to evaluate on. By default 1 in 100 of those in --dataset-id."""
    max_examples: PositiveCount | None = None
    """Most records to use. By default all."""
    validation_tokens: PositiveCount = 200_000
    """Most held-out tokens to evaluate on."""
    loss_on: Literal["assistant", "all"] = "assistant"
    """Tokens that count in the loss: those of the assistant or the completion, or all. All tokens of a `text` count."""
    chat_template: FilePath | None = None
    """File with a chat template (jinja). By default the tokenizer's own."""
    seq_len: Annotated[Count, Ge(2)] = 2048
    """Tokens of a training sequence. As many records as fit are packed into it."""
    truncate: bool = True
    """Cut records that are longer than a sequence. With --no-truncate they are an error."""

    def spec(self, needs: Needs) -> DocumentSpec:
        from plimsoll.data.chat.row_bytes import DTYPES

        if needs.tokenizer is None or needs.vocabulary is None:
            raise RecipeError(
                "the data chat is encoded by a published model's tokenizer, and this model has none: take the model"
                " pretrained, or the data text"
            )
        needs.require_readable(self.seq_len)
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
        return HostMemory(bytes=rows, advice="a smaller --batch-size")

    def imports(self) -> tuple[str, ...]:
        return ("plimsoll.data.chat.rows",)

    @property
    def records(self) -> Mapping[str, Records]:
        """Training records, and those of --validation-id if given, with the keys LEARNED and HELD_OUT."""
        from plimsoll.data.chat.records import open_records

        learned = open_records(
            self.dataset_id, config=self.dataset_config, split=self.split, max_examples=self.max_examples
        )
        if self.validation_id is None:
            return {LEARNED: learned}
        return {LEARNED: learned, HELD_OUT: open_records(self.validation_id)}

    @property
    def encoding(self) -> dict[str, Any]:
        """Settings, besides the tokenizer, that determine the encoded records."""
        return {"loss_on": self.loss_on, "hold_out": self.validation_id is None}

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        from plimsoll.data.chat.kept import encoded_examples
        from plimsoll.data.chat.tokenizer import save_chat_tokenizer

        # Encode the records with the model's tokenizer, which is copied into the run's folder.
        model = find_folder(reading.needs.tokenizer or "")
        tokenizer = self._tokenizer_of_model(model, reading.needs)
        save_chat_tokenizer(model, reading.folder / TOKENIZER, chat_template=self.chat_template)
        encoded = {
            name: encoded_examples(records, tokenizer, say=say, **self.encoding)
            for name, records in self.records.items()
        }

        # Pack the training records into sequences.
        learned = encoded[LEARNED]
        rows = self._rows(learned, reading)
        packing = rows.packing()
        for line in packing.lines():
            say(line)
        held_out = encoded[HELD_OUT].train if HELD_OUT in encoded else learned.validation
        if not held_out.count:
            say(f"validation: none, and `plimsoll evaluate` will refuse this run: {self.no_validation}")

        facts = {
            "description": f"{packing.documents:,} documents, {packing.tokens:,} tokens in {self.dataset_id}",
            "packing": asdict(packing),
            **{name: examples.made_with.to_json() for name, examples in encoded.items()},
            "conversations": learned.conversations,
            "day": learned.day,
        }
        length = reading.length
        prepared = length.prepared_for(packing.rows, data=self.dataset_id, facts=facts, seq_len=self.seq_len)
        if length.steps is not None:
            return prepared

        # Count the sequences of all epochs: each epoch packs the records anew, into slightly more or fewer.
        epochs = length.epochs_of(self.dataset_id)
        rows_read = rows.rows_of(epochs)
        return replace(
            prepared,
            steps=max(1, int(rows_read / reading.batch_size)),
            steps_per_epoch=rows_read / epochs / reading.batch_size,
        )

    def require_same(self, prepared: Prepared, reading: Reading, *, training: bool) -> None:
        """Raises DataError if the records or their encoding have changed since the run began."""
        from plimsoll.data.chat.kept import examples_of

        if not training:
            return
        facts = prepared.facts
        model = find_folder(reading.needs.tokenizer or "")
        tokenizer = self._tokenizer_of_model(model, reading.needs, day=facts["day"])
        for name, records in self.records.items():
            require_same(records.name, facts[name], examples_of(records, tokenizer, **self.encoding))

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        from plimsoll.data.loader import Loader

        return Loader(self._rows(self.encoded_before(LEARNED, reading), reading), prefetch=prefetch)

    def validation(self, reading: Reading, *, examples: int) -> Iterable[Batch]:
        from plimsoll.data.chat.rows import validation_rows

        if self.validation_id is None:
            held_out = self.encoded_before(LEARNED, reading).validation
        else:
            held_out = self.encoded_before(HELD_OUT, reading).train
        return validation_rows(held_out, seq_len=self.seq_len, batch_size=examples, max_tokens=self.validation_tokens)

    def encoded_before(self, name: str, reading: Reading) -> Encoded:
        """Returns the run's encoded records of `name` (LEARNED or HELD_OUT). Loads no tokenizer if the cache has them.

        A tokenizer of 49,152 tokens takes 31 MiB, and training does not need it.

        Raises:
            DataError: The cache has lost the encoded records, and the source has changed since the run began.
        """
        from plimsoll.data.chat.encoded import open_encoded
        from plimsoll.data.chat.kept import encoded_examples
        from plimsoll.data.kept import kept

        facts = reading.facts
        place = kept(Facts.from_json(facts[name]).digest)
        if place is not None:
            return open_encoded(place)
        records = self.records[name]
        tokenizer = tokenizer_of_run(reading.folder, facts["day"])
        again = encoded_examples(records, tokenizer, say=lambda words: None, **self.encoding)
        require_same(records.name, facts[name], again.made_with)
        return again

    def _tokenizer_of_model(self, folder: Path, needs: Needs, *, day: str | None = None) -> ChatTokenizer:
        """Returns the model's tokenizer, with the template of --chat-template if given.

        Args:
            folder: Folder of the model.
            needs: The model's requirements on its data.
            day: Date for the template, like 2026-11-25; today by default.

        Raises:
            DataError: The tokenizer has more ids than the model's embedding has rows.
        """
        from plimsoll.data.chat.tokenizer import load_chat_tokenizer

        tokenizer = load_chat_tokenizer(folder, chat_template=self.chat_template, day=day)
        if needs.vocabulary is not None and tokenizer.size > needs.vocabulary:
            raise DataError(
                f"the tokenizer in {folder} has {tokenizer.size:,} ids, and the model {needs.vocabulary:,} rows for"
                " them: copy the tokenizer.json that belongs to it"
            )
        return tokenizer

    def _rows(self, encoded: Encoded, reading: Reading) -> PackedRows:
        from plimsoll.data.chat.rows import PackedRows

        return PackedRows(
            encoded.train,
            seq_len=self.seq_len,
            batch_size=reading.batch_size,
            seed=reading.seed,
            truncate=self.truncate,
            name=self.dataset_id,
        )


def tokenizer_of_run(folder: Path, day: str | None) -> ChatTokenizer:
    """Returns the tokenizer in a run's folder. Its chat template gets the date `day`."""
    from plimsoll.data.chat.tokenizer import load_chat_tokenizer

    return load_chat_tokenizer(folder / TOKENIZER, day=day)
