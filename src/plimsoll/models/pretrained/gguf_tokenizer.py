"""A tokenizer as llama.cpp reads it from a GGUF file: tokens, their types, merges or scores, special ids, template.

llama.cpp cuts text into words by rules that it has compiled in, and a file names one of them. Which one belongs to a
tokenizer.json follows from its pre-tokenizer; one that is not known is refused, since other words give other tokens.
Sources: `src/llama-vocab.cpp` and `conversion/base.py` of https://github.com/ggml-org/llama.cpp, November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.errors import DataError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens, as numbers in the file."""
SPACE = "▁"
"""Character by which SentencePiece writes a space."""

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
START = r"[^\r\n\p{L}\p{N}]?"
GPT_2, DIGIT = "GPT-2", "digit"
"""Words of GPT-2, and single digits, which pre-tokenizers of their own cut."""
WORDS: Mapping[tuple[tuple[str, ...], bool], str] = {
    ((GPT_2,), False): "gpt-2",
    ((DIGIT, GPT_2), False): "smollm",
    ((CONTRACTIONS + r"\p{N}{1,3}" + PUNCTUATION,), True): "llama-bpe",
    ((CONTRACTIONS + r"\p{N}{1,3}" + PUNCTUATION,), False): "smaug-bpe",
    ((CONTRACTIONS + r"\p{N}" + PUNCTUATION,), False): "qwen2",
    (
        (
            f"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        True,
    ): "tekken",
    (("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT), False): "deepseek-coder",
}
"""What a pre-tokenizer cuts by, in order, and whether a whole word is looked up before merges, to the rule's name."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """A tokenizer, as an export has it at hand."""

    content: Mapping[str, Any]
    """Content of its tokenizer.json."""
    name: str
    """Its file, for refusals."""
    special: Mapping[str, str]
    """Spelling of special tokens by name: bos_token, eos_token and others."""
    beginning: int | None
    """Id that it puts before a text; None for none."""
    end: int
    """Id that ends a text."""
    stops: frozenset[int]
    """Ids after which an answer is complete."""
    template: str | None
    """Chat template."""


def tokenizer_fields(words: Words, size: int) -> dict[str, Any]:
    """Returns the fields `tokenizer.*` of a GGUF file.

    Args:
        words: The tokenizer.
        size: Rows of the model's embedding: ids without a token get a name of their own.

    Raises:
        DataError: llama.cpp could not cut text as this tokenizer does.
    """
    model = words.content["model"]
    if model.get("type") != "BPE":
        raise _refused(words, f"its model is {model.get('type')}, and BPE is written")
    if not model["merges"]:
        raise _refused(words, "it has no merges, without which llama.cpp reads none")
    tokens = _tokens(words, size)
    fields: dict[str, Any] = {"ggml.tokens": list(tokens)}
    merges = [tuple(pair.split(" ", 1) if isinstance(pair, str) else pair) for pair in model["merges"]]
    if model.get("byte_fallback"):
        fields |= _sentencepiece(words, tokens, merges)
    else:
        fields |= {"ggml.model": "gpt2", "ggml.pre": _word_rule(words)}
        fields |= {"ggml.merges": [f"{left} {right}" for left, right in merges]}
    fields["ggml.token_type"] = list(tokens.values())
    return {f"tokenizer.{name}": value for name, value in (fields | _special(words)).items()}


def _tokens(words: Words, size: int) -> dict[str, int]:
    """Returns the spelling and type of every id, in order."""
    model = words.content["model"]
    known = {number: token for token, number in model["vocab"].items()}
    added = {token["id"]: token for token in words.content.get("added_tokens", ())}
    tokens: dict[str, int] = {}
    for number in range(size):
        if number in added:
            token = added[number]
            ends = number == words.end or number in words.stops
            kind = CONTROL if token["special"] or ends else USER_DEFINED
            tokens[token["content"]] = UNKNOWN if token["content"] == model.get("unk_token") else kind
        elif number in known:
            tokens[known[number]] = CONTROL if number == words.end else NORMAL
        else:
            tokens[f"[PAD{number}]"] = UNUSED
    return tokens


def _word_rule(words: Words) -> str:
    normalizer = words.content.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":  # llama.cpp leaves NFC out, as for any Qwen
        raise _refused(words, f"it changes text before it cuts it ({normalizer.get('type')})")
    pre = words.content.get("pre_tokenizer") or {}
    parts = pre["pretokenizers"] if pre.get("type") == "Sequence" else [pre]
    rules = tuple(rule for part in parts if (rule := _rule(part)) is not None)
    name = WORDS.get((rules, bool(words.content["model"].get("ignore_merges"))))
    if name is None:
        raise _refused(words, f"it cuts text into words in a way that is not known here ({' then '.join(rules)[:160]})")
    return name


def _rule(part: Mapping[str, Any]) -> str | None:
    """Returns by what a pre-tokenizer cuts; None where it only writes bytes as letters."""
    kind = part.get("type")
    if kind == "ByteLevel" and not part.get("add_prefix_space"):
        return GPT_2 if part.get("use_regex", True) else None
    if kind == "Digits" and part.get("individual_digits"):
        return DIGIT
    if kind == "Split" and part.get("behavior") == "Isolated" and not part.get("invert"):
        return next(iter(part["pattern"].values()))
    return str(kind)


def _sentencepiece(words: Words, tokens: dict[str, int], merges: list[tuple[str, ...]]) -> dict[str, Any]:
    """Returns the fields of a SentencePiece tokenizer; `tokens` get the type of bytes.

    llama.cpp joins the neighbours whose joint token has the best score, the tokenizers library those of the first
    merge: the score of a token is the number of the first merge that makes it, below zero.
    """
    missing = [name for name in (f"<0x{byte:02X}>" for byte in range(256)) if name not in tokens]
    if missing:
        raise _refused(words, f"it falls back to bytes, and has no token {missing[0]}")
    tokens |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    scores: dict[str, float] = {}
    for number, pair in enumerate(merges):
        scores.setdefault("".join(pair), -float(number))
    last = -float(len(merges))
    return {
        "ggml.model": "llama",
        "ggml.pre": "default",
        "ggml.scores": [scores.get(token, last) for token in tokens],
        "ggml.add_space_prefix": _adds_space(words),
    }


def _adds_space(words: Words) -> bool:
    """Returns whether a text gets a space before it, which SentencePiece writes as a letter."""
    normalizer, pre = words.content.get("normalizer") or {}, words.content.get("pre_tokenizer") or {}
    steps = normalizer.get("normalizers", [normalizer] if normalizer else [])
    kinds = [step.get("type") for step in steps]
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    plain = not pre or (pre.get("type") == "Split" and pre.get("pattern") == {"String": " "})
    if plain and steps and steps[-1] == replaces and kinds in (["Replace"], ["Prepend", "Replace"]):
        return kinds[0] == "Prepend"
    if not steps and pre.get("type") == "Metaspace" and pre.get("replacement") == SPACE:
        return pre.get("prepend_scheme", "always") != "never"
    raise _refused(words, f"it changes text in a way that is not known here ({kinds}, {pre.get('type')})")


def _special(words: Words) -> dict[str, Any]:
    """Returns ids of special tokens, whether one begins a text, and the template."""
    vocabulary = dict(words.content["model"]["vocab"])
    vocabulary |= {token["content"]: token["id"] for token in words.content.get("added_tokens", ())}
    fields: dict[str, Any] = {"ggml.eos_token_id": words.end}
    for name, theirs in (("bos_token", "bos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        if words.special.get(name) in vocabulary:
            fields[f"ggml.{theirs}_token_id"] = vocabulary[words.special[name]]
    if turns := sorted(words.stops - {words.end}):
        fields["ggml.eot_token_id"] = turns[0]
    if words.beginning is not None:
        fields["ggml.bos_token_id"] = words.beginning
    fields |= {"ggml.add_bos_token": words.beginning is not None, "ggml.add_eos_token": False}
    return fields if words.template is None else fields | {"chat_template": words.template}


def _refused(words: Words, why: str) -> DataError:
    return DataError(
        f"the tokenizer {words.name} cannot be written into a GGUF file: {why}. Export with --merged, and convert that"
        " folder by llama.cpp's convert_hf_to_gguf.py"
    )
