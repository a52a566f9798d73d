"""Tokenizers in llama.cpp's form: ids, types, merges and scores, and the rule by which words are cut."""

import json
from dataclasses import replace

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from chat_files import CHATML, byte_tokenizer, write_tokenizer
from plimsoll.data.chat.tokenizer import load_chat_tokenizer
from plimsoll.errors import DataError
from plimsoll.models.pretrained.gguf_tokenizer import (
    BYTE,
    CONTRACTIONS,
    CONTROL,
    NORMAL,
    PUNCTUATION,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Words,
    tokenizer_fields,
)
from plimsoll.recipes.finetune.export import words_of

MERGES = [("w", "h"), ("wh", "y")]


def words(tokenizer, **changed):
    given = {"special": {}, "beginning": None, "end": 1, "stops": frozenset([1]), "template": None}
    return Words(**{"content": json.loads(tokenizer.to_str()), "name": "t.json"} | given | changed)


def cut_by(*parts, **model):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")], **model))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def test_ids_of_a_chat_tokenizer_have_their_types_and_what_ends_a_turn_is_known(tmp_path):
    folder = write_tokenizer(tmp_path, CHATML, tokenizer=byte_tokenizer(MERGES))
    tokenizer = load_chat_tokenizer(folder)
    fields = tokenizer_fields(words_of(tokenizer), tokenizer.size + 2)
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    ids = {token: number for number, token in enumerate(tokens)}
    assert len(tokens) == len(types) == tokenizer.size + 2
    assert tokens[-1] == f"[PAD{tokenizer.size + 1}]"
    assert [types[ids[token]] for token in ("why", "<|im_end|>", tokens[-1])] == [NORMAL, CONTROL, UNUSED]
    assert fields["tokenizer.ggml.merges"] == ["w h", "wh y"]
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert fields["tokenizer.ggml.eos_token_id"] == ids["<|endoftext|>"]
    assert fields["tokenizer.ggml.eot_token_id"] == ids["<|im_end|>"]
    assert fields["tokenizer.ggml.bos_token_id"] == ids["<|begin|>"]
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert fields["tokenizer.chat_template"] == CHATML


def test_a_token_that_begins_every_text_is_added_there_too():
    fields = tokenizer_fields(words(byte_tokenizer(MERGES), beginning=7), 300)
    assert (fields["tokenizer.ggml.bos_token_id"], fields["tokenizer.ggml.add_bos_token"]) == (7, True)


def test_an_added_token_that_is_not_special_is_the_users():
    tokenizer = byte_tokenizer(MERGES)
    tokenizer.add_tokens(["<tool>"])
    types = tokenizer_fields(words(tokenizer), tokenizer.get_vocab_size())["tokenizer.ggml.token_type"]
    assert types[-1] == USER_DEFINED


RULES = {
    "llama-bpe": cut_by(split(CONTRACTIONS + r"\p{N}{1,3}" + PUNCTUATION), ignore_merges=True),
    "smaug-bpe": cut_by(split(CONTRACTIONS + r"\p{N}{1,3}" + PUNCTUATION)),
    "qwen2": cut_by(split(CONTRACTIONS + r"\p{N}" + PUNCTUATION)),
    "smollm": cut_by(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_by_which_words_are_cut_follows_from_the_pre_tokenizer(rule):
    assert tokenizer_fields(words(RULES[rule]), 3)["tokenizer.ggml.pre"] == rule


def test_text_is_normalised_as_a_qwens_is_and_no_other_way():
    tokenizer = cut_by(split(CONTRACTIONS + r"\p{N}" + PUNCTUATION))
    tokenizer.normalizer = normalizers.NFC()
    assert tokenizer_fields(words(tokenizer), 3)["tokenizer.ggml.pre"] == "qwen2"
    tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(DataError, match=r"t.json cannot be written .*changes text before it cuts it \(Lowercase\)"):
        tokenizer_fields(words(tokenizer), 3)


def pieces(*steps, **model):
    """A tokenizer of SentencePiece's kind: bytes, letters, and two merges."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁ab"]
    vocab = {token: number for number, token in enumerate(tokens)}
    how = {"byte_fallback": True, "unk_token": "<unk>"} | model
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁a", "b")], **how))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if steps:
        tokenizer.normalizer = normalizers.Sequence(list(steps))
    return tokenizer


SPACES = normalizers.Replace(" ", "▁")


def test_pieces_get_the_score_of_the_merge_that_makes_them():
    tokenizer = pieces(normalizers.Prepend("▁"), SPACES)
    fields = tokenizer_fields(words(tokenizer, special={"unk_token": "<unk>"}, end=2, stops=frozenset([2])), 264)
    scored = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"], strict=True))
    assert scored["▁a"] == 0 > scored["▁ab"] == -1 > scored["a"]
    types = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True))
    assert [types[token] for token in ("<unk>", "</s>", "<0x0A>", "▁ab")] == [UNKNOWN, CONTROL, BYTE, NORMAL]
    assert fields["tokenizer.ggml.model"] == "llama"
    assert fields["tokenizer.ggml.unknown_token_id"] == 0
    assert "tokenizer.ggml.merges" not in fields


def metaspace(scheme):
    tokenizer = pieces()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, False)
    return tokenizer


SPACED = {
    "llama": (pieces(normalizers.Prepend("▁"), SPACES), True),
    "gemma": (pieces(SPACES), False),
    "metaspace": (metaspace("first"), True),
    "metaspace without": (metaspace("never"), False),
}


@pytest.mark.parametrize("name", SPACED)
def test_whether_a_text_begins_with_a_space_is_said(name):
    tokenizer, adds = SPACED[name]
    assert tokenizer_fields(words(tokenizer), 264)["tokenizer.ggml.add_space_prefix"] is adds


REFUSED = {
    "unigram": (Tokenizer(models.Unigram([("a", 0.0)], 0)), r"its model is Unigram, and BPE is written"),
    "no merges": (byte_tokenizer(), r"it has no merges, without which llama\.cpp reads none"),
    "other words": (cut_by(split(r"\w+")), r"in a way that is not known here \(\\w\+\)"),
    "a space before": (
        cut_by(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        r"in a way that is not known here \(ByteLevel\)",
    ),
    "other text": (pieces(normalizers.NFKC(), SPACES), r"it changes text in a way that is not known here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_llama_cpp_would_not_follow_is_refused(name):
    tokenizer, reason = REFUSED[name]
    with pytest.raises(DataError, match=reason) as caught:
        tokenizer_fields(words(tokenizer), 300)
    assert "Export with --merged" in str(caught.value)


def test_bytes_that_are_missing_are_named():
    whole = words(pieces(SPACES))
    vocab = {token: number for token, number in whole.content["model"]["vocab"].items() if token != "<0x41>"}
    content = whole.content | {"model": whole.content["model"] | {"vocab": vocab}}
    with pytest.raises(DataError, match=r"it falls back to bytes, and has no token <0x41>"):
        tokenizer_fields(replace(whole, content=content), 264)
