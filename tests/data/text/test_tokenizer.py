"""Tokens are arrays, special tokens come only from us, and training is the same every time."""

import json
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from hypotheses import examples
from plimsoll.data.text import tokenizer as tokenizer_module
from plimsoll.data.text.documents import Piece, is_held_out
from plimsoll.data.text.tokenizer import TextTokenizer, load_tokenizer, tokenizer_vocab_size, train_byte_bpe
from plimsoll.errors import DataError, RecipeError
from programs import printed


@pytest.fixture(scope="module")
def trained_tokenizer(listed_documents):
    """One with merges, of some of its words and spaces."""
    return train_byte_bpe(listed_documents(["The ship's x;  12 ship \n\n\t12 12 The The  x"] * 50), 300)


SENTENCES = [f"The {kind} ship number {i} sails." for i in range(150) for kind in ("old", "new")]


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=80))
def test_any_text_comes_back_from_its_bytes(byte_tokenizer, text):
    ids = byte_tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert len(ids) == len(text.encode())
    assert byte_tokenizer.decode(ids) == text


def test_the_name_of_a_special_token_in_a_text_stays_text(byte_tokenizer, listed_documents):
    trained = train_byte_bpe(listed_documents(SENTENCES), 300)
    for tokenizer in (byte_tokenizer, trained):
        ids = tokenizer.encode("before <|endoftext|> after")
        assert tokenizer.end_of_text not in ids
        assert tokenizer.decode(ids) == "before <|endoftext|> after"


def test_end_of_text_follows_a_document_and_not_a_piece_of_one(byte_tokenizer):
    pieces = [Piece("a", {}, False, False), Piece("b", {}, True, False), Piece("", {}, True, False)]
    decoded = byte_tokenizer.decode(byte_tokenizer.encode_pieces(pieces))
    assert decoded == "ab<|endoftext|><|endoftext|>"


WORDS = st.lists(
    st.sampled_from(["The", " ", "  ", "ship", "'s", "\n", "\t", "12", "x", "<|endoftext|>", "é", ";", "\u00a0"])
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(WORDS.map("".join), st.booleans()), max_size=4), st.integers(1, 9))
def test_a_piece_cut_between_words_has_the_ids_of_the_whole(trained_tokenizer, pieces, span):
    """However small the parts are that are encoded at once."""
    pieces = [Piece(text, {}, last, False) for text, last in pieces]
    whole = trained_tokenizer.encode_each([piece.text for piece in pieces], [piece.last for piece in pieces])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "SPAN", span)
        np.testing.assert_array_equal(trained_tokenizer.encode_pieces(pieces), whole)


def test_only_the_words_of_gpt_2_are_cut_between(trained_tokenizer):
    """Others may join what stands on both sides of a space."""
    long = [Piece("word and " * 9_000, {}, True, False)]
    for changed in (
        {"normalizer": normalizers.NFC()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)])},
        {"added_tokens": [AddedToken("word and")]},
        {"added_tokens": [AddedToken("word", rstrip=True)]},
        {"added_tokens": [AddedToken("word")]},
        {},
    ):
        tokenizer = Tokenizer.from_str(trained_tokenizer.to_json())
        tokenizer.add_tokens(added := changed.pop("added_tokens", []))
        for name, value in changed.items():
            setattr(tokenizer, name, value)
        cut = not changed and not any(" " in token.content or token.rstrip for token in added)
        other = TextTokenizer(tokenizer)
        with mock.patch.object(other, "encode_each", wraps=other.encode_each) as encode:
            ids = other.encode_pieces(long)
        longest = max(len(text) for call in encode.call_args_list for text in call.args[0])
        assert (longest < 2 * tokenizer_module.SPAN) == cut
        np.testing.assert_array_equal(ids, other.encode_each([long[0].text], [True])[0])


def test_training_is_the_same_in_every_process(tmp_path, listed_documents):
    tokenizer = train_byte_bpe(listed_documents(SENTENCES), 320)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert tokenizer.size == 320
    program = (
        "import json, sys\n"
        "from listed_documents import Listed\n"
        "from plimsoll.data.text.documents import Documents\n"
        "from plimsoll.data.text.tokenizer import train_byte_bpe\n"
        "documents = Documents([Listed(json.loads(sys.argv[1]))], name='', description='', contents='')\n"
        "train_byte_bpe(documents, 320).save(sys.argv[2])\n"
    )
    printed(program, json.dumps(SENTENCES), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_training_reads_the_beginning_and_no_held_out_document(listed_documents):
    read = []

    class Watched(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    train_byte_bpe(listed_documents(Watched(["ab" * 500] * 100)), 300, sample_bytes=10_000)
    assert max(read) <= 10
    only_held_out = [text for text in map(str, range(3000)) if is_held_out(text)]
    with pytest.raises(DataError, match=r"cannot be trained on a list: the first 8.0 MiB hold no document"):
        train_byte_bpe(listed_documents(only_held_out), 300)
    with pytest.raises(RecipeError, match=r"--vocab-size must be at least 257"):
        train_byte_bpe(listed_documents(SENTENCES), 256)


def test_a_saved_tokenizer_is_the_same_from_its_file_and_its_folder(tmp_path, byte_tokenizer):
    byte_tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(path)
        assert tokenizer_vocab_size(path) == loaded.size == byte_tokenizer.size == 257
        assert loaded.end_of_text == byte_tokenizer.end_of_text
        np.testing.assert_array_equal(loaded.encode("some text"), byte_tokenizer.encode("some text"))


def test_a_tokenizer_without_end_of_text_is_refused_unless_it_is_named(tmp_path):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "<|fin|>": 7}, merges=[]))
    with pytest.raises(DataError, match=r"has no end-of-text token.*<\|endoftext\|>.*eos_token"):
        TextTokenizer(tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|fin|>"}}')
    loaded = load_tokenizer(tmp_path)
    assert loaded.end_of_text == 7
    assert loaded.size == tokenizer_vocab_size(tmp_path) == 8
    assert loaded.dtype == np.uint16


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    for read in (load_tokenizer, tokenizer_vocab_size):
        with pytest.raises(DataError, match=r"is not a tokenizer"):
            read(tmp_path)


def test_a_vocabulary_and_its_merges_in_two_files_are_one_tokenizer(tmp_path):
    letters = {letter: place for place, letter in enumerate("abc")}
    (tmp_path / "vocab.json").write_text(json.dumps(letters | {"ab": 3, "abc": 4, "<|endoftext|>": 5}))
    with pytest.raises(DataError, match=r"merges\.txt is not beside it"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nab c\n")
    for path in (tmp_path, tmp_path / "vocab.json"):
        loaded = load_tokenizer(path)
        assert tokenizer_vocab_size(path) == loaded.size == 6
        assert (loaded.end_of_text, loaded.end_of_text_token) == (5, "<|endoftext|>")
        assert loaded.encode("abcabab").tolist() == [4, 3, 3]
    (tmp_path / "mine-vocab.json").write_text("3")
    (tmp_path / "mine-merges.txt").write_text("")
    for read in (load_tokenizer, tokenizer_vocab_size):
        with pytest.raises(DataError, match="is not a tokenizer"):
            read(tmp_path / "mine-vocab.json")


def test_the_golden_files_of_gpt_2_give_its_ids(shared):
    tokenizer = load_tokenizer(shared / "data/tokenizers/gpt2_vocab.json")
    assert (tokenizer.size, tokenizer.end_of_text) == (50_257, 50_256)
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert tokenizer.end_of_text not in tokenizer.encode("a <|endoftext|> b")


def test_one_document_in_a_hundred_is_held_out_by_its_content():
    held_out = [i for i in range(20_000) if is_held_out(f"document {i}")]
    assert 140 < len(held_out) < 260
    assert held_out[:4] == [609, 665, 773, 860]  # the split of old runs must not move


@pytest.mark.parametrize(
    ("template", "beginning"),
    [("$A", None), ("<s> $A", 2), ("$A </s>", None), ("<s> $A </s>", None), ("<s> <s> $A", 2)],
)
def test_what_stands_before_a_text_is_its_beginning_and_not_what_stands_after_it(template, beginning):
    """With one after it too, nobody can tell where the text begins by its ids alone."""
    made = Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "<s>": 2}, unk_token="a"))
    made.add_special_tokens(["<s>", "</s>"])
    special = [("<s>", 2), ("</s>", 1)]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    assert TextTokenizer(made).beginning() == beginning
