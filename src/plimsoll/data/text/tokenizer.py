"""Text to ids and back, by a Hugging Face `tokenizers` tokenizer; ids become NumPy arrays at once.

A Python list of ids takes 8 bytes an entry and often 28 more for the number; an array takes 4.
Text that spells a special token ("<|endoftext|>" in a source file) stays text: only `encode_pieces` ends
a document. The library works on several texts in parallel (TOKENIZERS_PARALLELISM=false stops it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plimsoll.data.text.pieces import END_OF_TEXT, cut_string
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import MIB, format_bytes

if TYPE_CHECKING:
    from plimsoll.data.text.documents import Documents, Piece

_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>", "[SEP]")

_BYTES_AND_END = 257  # tokens no byte-level vocabulary can do without


class TextTokenizer:
    def __init__(self, tokenizer: Tokenizer, *, end_of_text: str | None = None, name: str = "the tokenizer") -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # the names of special tokens are text like any other
        self._tokenizer = tokenizer
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """Highest id + 1: the rows of an embedding table."""
        self.end_of_text = _end_of_text(tokenizer, end_of_text, name)

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that ids are kept in where many of them are kept."""
        return np.dtype(np.uint16 if self.size <= 2**16 else np.int32)

    def beginning(self) -> int | None:
        """The id that this tokenizer puts before a text where it is asked for special tokens; None for none."""
        with_it = self._tokenizer.encode("a", add_special_tokens=True).ids
        without = self._tokenizer.encode("a", add_special_tokens=False).ids
        before = len(with_it) - len(without)
        return with_it[0] if before and with_it[before:] == without else None

    def text_of(self, token: int) -> str:
        """As the vocabulary spells one token."""
        return self._tokenizer.id_to_token(token) or ""

    def encode(self, text: str) -> np.ndarray:
        """int32 ids. A text longer than 64 KiB is encoded in the pieces in which documents are read."""
        return self.encode_each([piece for piece, _ in cut_string(text)])[0]

    def encode_pieces(self, pieces: Sequence[Piece]) -> np.ndarray:
        """int32 ids of the pieces one after another, with end-of-text after the last of a document."""
        return self.encode_each([piece.text for piece in pieces], [piece.last for piece in pieces])[0]

    def encode_each(self, texts: Sequence[str], ends: Sequence[bool] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """int32 ids of the texts one after another, with end-of-text where `ends`; and how many each text has."""
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
        """Special tokens are shown, not dropped: a report says what the model wrote."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, path: str | Path) -> None:
        """One `tokenizer.json`, readable by `tokenizers` and `transformers`."""
        Path(path).write_text(self.to_json(), "utf-8")

    def to_json(self) -> str:
        """The content of a `tokenizer.json`."""
        return self._tokenizer.to_str(pretty=False)

    @property
    def end_of_text_token(self) -> str:
        """As it is spelled in the vocabulary."""
        return self._tokenizer.id_to_token(self.end_of_text) or ""


def _end_of_text(tokenizer: Tokenizer, said: str | None, name: str) -> int:
    for token in (said, *_ENDS) if said else _ENDS:
        if (found := tokenizer.token_to_id(token)) is not None:
            return found
    raise DataError(
        f"{name} has no end-of-text token, which has to stand between documents: none of {', '.join(_ENDS)} "
        "is in its vocabulary. Name one as eos_token in the tokenizer_config.json beside it, or train a "
        "tokenizer with --vocab-size."
    )


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """From a `tokenizer.json`, the folder that holds one, or a `vocab.json` beside its `merges.txt`, as GPT-2's are."""
    file = _tokenizer_file(path)
    try:
        tokenizer = _byte_bpe_of_files(file) if _is_vocabulary(file) else Tokenizer.from_file(str(file))
    except DataError:
        raise
    except Exception as problem:  # the library raises bare Exceptions
        raise _unreadable(file, problem) from problem
    return TextTokenizer(tokenizer, end_of_text=_said_end_of_text(file.parent), name=str(file))


def tokenizer_from_json(text: str, *, end_of_text: str) -> TextTokenizer:
    """What `to_json` wrote, in another process."""
    return TextTokenizer(Tokenizer.from_str(text), end_of_text=end_of_text)


def _is_vocabulary(file: Path) -> bool:
    return file.name.endswith("vocab.json")


def _byte_bpe_of_files(vocabulary: Path) -> Tokenizer:
    """Of the two files in which GPT-2 was published, `vocab.json` and `merges.txt`: their names may begin alike."""
    merges = vocabulary.with_name(vocabulary.name.removesuffix("vocab.json") + "merges.txt")
    if not merges.is_file():
        raise DataError(
            f"{vocabulary} is the vocabulary of a tokenizer in two files, and {merges.name} is not beside it: copy it"
            " there, or name a tokenizer.json."
        )
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _said_end_of_text(folder: Path) -> str | None:
    """The `eos_token` of the files that `transformers` saves beside a tokenizer."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            token = json.loads((folder / name).read_text("utf-8"))["eos_token"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return token["content"] if isinstance(token, dict) else token
    return None


def tokenizer_vocab_size(path: str | Path) -> int:
    """Highest id + 1, from the file alone: the tokenizer is not built."""
    file = _tokenizer_file(path)
    try:
        content: Any = json.loads(file.read_text("utf-8"))
        content = {"model": {"vocab": content}} if _is_vocabulary(file) else content
        vocabulary = content["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = (token["id"] for token in content.get("added_tokens", ()))
        return max(max(ids, default=-1), max(added, default=-1)) + 1
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise _unreadable(file, problem) from problem


def _tokenizer_file(path: str | Path) -> Path:
    file = Path(path).expanduser()
    if file.is_dir():
        named = [file / name for name in ("tokenizer.json", "vocab.json")]
        file = next((one for one in named if one.is_file()), named[0])
    if not file.is_file():
        raise DataError(f"there is no tokenizer at {file}: name a tokenizer.json, or the folder of one.")
    return file


def _unreadable(file: Path, problem: Exception) -> DataError:
    reason = " ".join(f"{problem}".split())[:160]
    return DataError(f"{file} is not a tokenizer of the tokenizers library ({reason}). Name its tokenizer.json.")


def train_byte_bpe(documents: Documents, vocab_size: int, *, sample_bytes: int = 8 * MIB) -> TextTokenizer:
    """Byte-level BPE, trained on the first training documents; it encodes any text.

    The same documents give the same tokenizer. A sample with few different words gives fewer than
    `vocab_size` tokens; `size` says how many. Training holds about 8 times the sample.
    """
    if vocab_size < _BYTES_AND_END:
        raise RecipeError(
            f"--vocab-size must be at least {_BYTES_AND_END} (256 bytes and {END_OF_TEXT}), got {vocab_size}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
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
    tokenizer.train_from_iterator(_chain(first, sample), trainer)
    return TextTokenizer(tokenizer, name=f"the tokenizer trained on {documents.name}")


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _sample(documents: Documents, size: int) -> Iterator[str]:
    seen = 0
    for piece in documents.pieces():
        if seen >= size:
            return
        seen += len(piece.text)
        if not piece.held_out:
            yield piece.text
