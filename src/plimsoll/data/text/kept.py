"""Trains a tokenizer once for a text, and keeps it in the cache."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from plimsoll.data.kept import NotKept, made_once
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.tokenizer import TextTokenizer, load_tokenizer, train_byte_bpe
from plimsoll.files.folder import Counts, Say

TOKENIZER = "tokenizer.json"


def trained_tokenizer(documents: Documents, vocab_size: int, say: Say) -> TextTokenizer:
    """Returns a byte-level BPE tokenizer that was trained on the beginning of a text: from the cache, or newly trained.

    Args:
        documents: The text. The tokenizer of a stream is not cached, since the stream's text may change.
        vocab_size: Largest number of tokens in the vocabulary.
        say: Receives progress messages.
    """

    def train() -> TextTokenizer:
        say(f"tokenizer: training a byte-level BPE of {vocab_size:,} tokens on the beginning of the text")
        return train_byte_bpe(documents, vocab_size)

    def make(folder: Path) -> Counts:
        train().save(folder / TOKENIZER)
        return {}

    if documents.paths is None:
        tokenizer = train()
    else:
        made_with = documents.facts(exact=True, tokenizers=version("tokenizers"), vocab_size=vocab_size)
        try:
            tokenizer = made_once(made_with, make, load_tokenizer, say=say)
        except NotKept:
            tokenizer = train()
    say(f"tokenizer: byte-level BPE of {tokenizer.size:,} tokens, trained on the beginning of the text")
    return tokenizer
