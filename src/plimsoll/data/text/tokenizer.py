"""Converts text to ids and back with a tokenizer of Hugging Face's `tokenizers` library. Ids are NumPy arrays.

A Python list takes 8 bytes an id and often 28 more for the number; an array takes 4. Text that spells a special token
("<|endoftext|>" in a source file) is encoded as ordinary text; only `encode_pieces` and `encode_each` add end-of-text.
The library releases Python's lock while it encodes, so threads encode several blocks in parallel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plimsoll.data import in_short, read_json
from plimsoll.data.text.pieces import END_OF_TEXT, cut_string
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import KIB, MIB, format_bytes

if TYPE_CHECKING:
    from plimsoll.data.text.documents import Documents, Piece

_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>", "[SEP]")

_BYTES_AND_END = 257  # smallest byte-level vocabulary: 256 bytes and end-of-text


SPAN = 8 * KIB
"""Characters that are encoded in one call. The encodings of 64 KiB of text took 13 MiB (notes, "Text in flight")."""
_BETWEEN_WORDS = re.compile("(?<=[!-~]) (?=[!-~])")
"""A single space between two visible ASCII characters. GPT-2's regular expression always starts a word there."""


class TextTokenizer:
    """A tokenizer of the `tokenizers` library with its end-of-text token."""

    def __init__(self, tokenizer: Tokenizer, *, end_of_text: str | None = None, name: str = "the tokenizer") -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # encode names of special tokens as ordinary text
        self._tokenizer = tokenizer
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """Highest id + 1: the number of rows of an embedding table."""
        ends = (end_of_text, *_ENDS) if end_of_text else _ENDS
        end = next((token for name in ends if (token := tokenizer.token_to_id(name)) is not None), None)
        if end is None:
            raise DataError(
                f"{name} has no end-of-text token, which has to stand between documents: none of {', '.join(_ENDS)} "
                "is in its vocabulary. Name one as eos_token in the tokenizer_config.json beside it, or train a "
                "tokenizer with --vocab-size."
            )
        self.end_of_text = end
        """Id of end-of-text, which follows every document."""
        self.end_of_text_token = tokenizer.id_to_token(end) or ""
        """End-of-text as spelled in the vocabulary."""
        self._cuts_words = _cuts_words(tokenizer)
        self.dtype = np.dtype(np.uint16 if self.size <= 2**16 else np.int32)
        """uint16 if it holds all ids, else int32; for storing many ids."""

    def beginning(self) -> int | None:
        """Returns the id of the special token that this tokenizer puts before a text; None if there is none."""
        with_it = self._tokenizer.encode("a", add_special_tokens=True).ids
        without = self._tokenizer.encode("a", add_special_tokens=False).ids
        before = len(with_it) - len(without)
        return with_it[0] if before and with_it[before:] == without else None

    def encode(self, text: str) -> np.ndarray:
        """Returns int32 ids. A text longer than 64 KiB is cut into the same pieces as a document."""
        return self.encode_each([piece for piece, _ in cut_string(text)])[0]

    def encode_pieces(self, pieces: Sequence[Piece]) -> np.ndarray:
        """Returns int32 ids of the pieces, concatenated, with end-of-text after the last piece of each document.

        If cutting a text does not change its ids, encodes about SPAN characters at a time, since encodings are large.
        """
        ids: list[np.ndarray] = []
        texts, ends, characters = list[str](), list[bool](), 0
        for piece in pieces:
            spans = list(_spans(piece.text)) if self._cuts_words else [piece.text]
            for number, span in enumerate(spans, 1):
                texts.append(span)
                ends.append(piece.last and number == len(spans))
                characters += len(span)
                if characters >= SPAN:
                    ids.append(self.encode_each(texts, ends)[0])
                    texts, ends, characters = [], [], 0
        return np.concatenate([*ids, self.encode_each(texts, ends)[0]])

    def encode_each(self, texts: Sequence[str], ends: Sequence[bool] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns int32 ids of all texts, concatenated, and the number of ids of each text.

        Adds end-of-text after each text whose entry of `ends` is True.
        """
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ends = ends or [False] * len(texts)
        ids = np.empty(sum(map(len, encoded)) + sum(ends), np.int32)
        start = 0
        for encoding, end in zip(encoded, ends, strict=True):
            stop = start + len(encoding)
            ids[start:stop] = encoding.ids
            if end:
                ids[stop] = self.end_of_text
            start = stop + end
        return ids, np.fromiter(map(len, encoded), np.int64, len(texts)) + np.array(ends, np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text, including special tokens, so that a report shows the model's complete output."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, path: str | Path) -> None:
        """Writes a `tokenizer.json`, readable by `tokenizers` and `transformers`."""
        Path(path).write_text(self.to_json(), "utf-8")

    def to_json(self) -> str:
        """Returns the content of a `tokenizer.json`."""
        return self._tokenizer.to_str(pretty=False)


def _cuts_words(tokenizer: Tokenizer) -> bool:
    """Returns True if the tokenizer always splits text at _BETWEEN_WORDS, so that cutting there changes no ids."""
    if tokenizer.normalizer is not None or getattr(tokenizer.model, "dropout", None) or tokenizer.pre_tokenizer is None:
        return False
    if any(
        not token.special and (" " in token.content or token.rstrip)
        for token in tokenizer.get_added_tokens_decoder().values()
    ):
        return False
    words = json.loads(tokenizer.pre_tokenizer.__getstate__())
    return words.get("type") == "ByteLevel" and words.get("use_regex") and not words.get("add_prefix_space")


def _spans(text: str) -> Iterator[str]:
    """Yields the text in parts of SPAN characters or slightly more, each of which ends with a word."""
    start = 0
    while len(text) - start > SPAN and (cut := _BETWEEN_WORDS.search(text, start + SPAN)) is not None:
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """Loads a tokenizer from a `tokenizer.json`, or a `vocab.json` (like GPT-2's) beside its `merges.txt`, or a folder.

    End-of-text is the `eos_token` of the files that `transformers` saves in the same folder, else a well-known token.
    """
    tokenizer, file = open_tokenizer(path)
    return TextTokenizer(tokenizer, end_of_text=special_tokens(file).get("eos_token"), name=str(file))


def open_tokenizer(path: str | Path) -> tuple[Tokenizer, Path]:
    """Returns the `tokenizers.Tokenizer` at a path that `load_tokenizer` accepts, and the path of its file."""
    file = _tokenizer_file(path)
    merges = file.with_name(file.name.removesuffix("vocab.json") + "merges.txt")
    if (two_files := file.name.endswith("vocab.json")) and not merges.is_file():
        raise DataError(
            f"{file} is the vocabulary of a tokenizer in two files, and {merges.name} is not beside it: copy it"
            " there, or name a tokenizer.json."
        )
    try:
        if two_files:
            return _byte_level(models.BPE.from_file(str(file), str(merges))), file
        return Tokenizer.from_file(str(file)), file
    except Exception as problem:  # the library raises bare Exceptions
        raise _unreadable(file, problem) from problem


def special_tokens(file: Path) -> dict[str, str]:
    """Returns the text of special tokens by name, like bos_token, from files that `transformers` saves beside `file`.

    If two files name a token, tokenizer_config.json has precedence.
    """
    spelled = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, token in json_beside(file, name).items():
            text = token.get("content") if isinstance(token, dict) else token
            if key.endswith("_token") and isinstance(text, str):
                spelled[key] = text
    return spelled


def json_beside(file: Path, name: str) -> dict[str, Any]:
    """Returns the object in a JSON file beside a tokenizer; an empty dict if there is none."""
    path = file.with_name(name)
    if not path.is_file():
        return {}
    again = "Copy it from the model again, or remove it"
    content = read_json(path, absent=again, again=again)
    return content if isinstance(content, dict) else {}


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tokenizer_vocab_size(path: str | Path) -> int:
    """Returns a tokenizer's highest id + 1 by reading its file, without building the tokenizer."""
    file = _tokenizer_file(path)
    try:
        content: Any = json.loads(file.read_text("utf-8"))
        content = {"model": {"vocab": content}} if file.name.endswith("vocab.json") else content
        vocabulary = content["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = (token["id"] for token in content.get("added_tokens", ()))
        return max(max(ids, default=-1), max(added, default=-1)) + 1
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _unreadable(file, problem) from problem


def _tokenizer_file(path: str | Path) -> Path:
    file = Path(path).expanduser()
    if file.is_dir():
        named = [file / name for name in ("tokenizer.json", "vocab.json")]
        file = next((path for path in named if path.is_file()), named[0])
    if not file.is_file():
        raise DataError(f"there is no tokenizer at {file}: name a tokenizer.json, or the folder of one.")
    return file


def _unreadable(file: Path, problem: Exception) -> DataError:
    return DataError(
        f"{file} is not a tokenizer of the tokenizers library ({in_short(problem)}). Name its tokenizer.json."
    )


def train_byte_bpe(documents: Documents, vocab_size: int, *, sample_bytes: int = 8 * MIB) -> TextTokenizer:
    """Trains a byte-level BPE tokenizer, which encodes any text, on the first training documents.

    The same documents give the same tokenizer. A sample with few different words gives fewer than `vocab_size` tokens
    (see `TextTokenizer.size`). Training takes about 8 times `sample_bytes` of memory.
    """
    if vocab_size < _BYTES_AND_END:
        raise RecipeError(
            f"--vocab-size must be at least {_BYTES_AND_END} (256 bytes and {END_OF_TEXT}), got {vocab_size}"
        )
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = _sample(documents, sample_bytes)
    first = next(sample, None)
    if first is None:
        raise DataError(
            f"a tokenizer cannot be trained on {documents.name}: the first {format_bytes(sample_bytes)} hold "
            "no document for training. Name a larger data set, or a tokenizer."
        )
    tokenizer.train_from_iterator(chain([first], sample), trainer)
    return TextTokenizer(tokenizer, name=f"the tokenizer trained on {documents.name}")


def _sample(documents: Documents, size: int) -> Iterator[str]:
    """Yields the training texts among the first `size` characters."""
    seen = 0
    for piece in documents.pieces():
        if seen >= size:
            return
        seen += len(piece.text)
        if not piece.held_out:
            yield piece.text
