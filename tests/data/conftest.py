"""A tokenizer of bytes, and documents that need no file."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from listed_documents import Listed
from plimsoll.data.text.documents import Documents
from plimsoll.data.text.tokenizer import TextTokenizer


@pytest.fixture(scope="session")
def listed_documents():
    def make(*files, max_examples=None):
        return Documents(
            [Listed(texts) for texts in files],
            name="a list",
            description="lists",
            contents=repr(files),
            max_examples=max_examples,
        )

    return make


@pytest.fixture(scope="session")
def byte_tokenizer():
    """One token per byte of UTF-8, and end-of-text = 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return TextTokenizer(tokenizer)
