"""Tokenizers with their templates: found beside them, the same ids as of one rendering, each special token once."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from chat_files import CHATML, GEMMA, LLAMA, SPECIAL, byte_tokenizer, turns, write_tokenizer
from plimsoll.data.chat.examples import read_example
from plimsoll.data.chat.records import Record
from plimsoll.data.chat.tokenizer import TEMPLATE, Example, load_chat_tokenizer, save_chat_tokenizer

ASKED = turns("Hi", "Yes", "And")


def prompt(folder, **options):
    tokenizer = load_chat_tokenizer(folder, **options)
    return tokenizer.decode(tokenizer.prompt_of(ASKED))


def test_a_prompt_ends_where_the_assistant_begins(tmp_path):
    text = prompt(write_tokenizer(tmp_path / "a", LLAMA))
    assert text.startswith("<|begin|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>")
    assert text.endswith("And<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")


def test_a_template_is_in_a_file_of_its_own_or_in_the_settings_or_is_given(tmp_path):
    folder = write_tokenizer(
        tmp_path / "a", [{"name": "tool_use", "template": "x"}, {"name": "default", "template": LLAMA}]
    )
    assert "<|eot_id|>" in prompt(folder)
    (folder / TEMPLATE).write_text(CHATML)
    assert "<|im_end|>" in prompt(folder)
    (tmp_path / "given.jinja").write_text(GEMMA)
    given = prompt(folder, chat_template=tmp_path / "given.jinja")
    assert "<start_of_turn>" in given
    save_chat_tokenizer(folder, tmp_path / "copy", chat_template=tmp_path / "given.jinja")
    assert prompt(tmp_path / "copy") == given
    loaded = load_chat_tokenizer(folder, chat_template=tmp_path / "given.jinja")
    assert load_chat_tokenizer(tmp_path / "copy").identity() == loaded.identity()


def test_an_answer_stops_at_the_end_of_the_text_and_of_the_turn(tmp_path):
    for number, (template, ends) in enumerate([(LLAMA, {"<|endoftext|>", "<|eot_id|>"}), (None, {"<|endoftext|>"})]):
        tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / str(number), template))
        assert {tokenizer.decode([stop]) for stop in tokenizer.stops()} == ends


def with_beginning():
    tokenizer = byte_tokenizer()
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("columns", "text", "learned"),
    [
        ({"text": "Hi"}, "<|begin|>Hi<|endoftext|>", "Hi<|endoftext|>"),
        ({"text": "<|begin|>Hi<|endoftext|>"}, "<|begin|>Hi<|endoftext|>", "Hi<|endoftext|>"),
        ({"prompt": "Say: ", "completion": "Hé"}, "<|begin|>Say: Hé<|endoftext|>", "Hé<|endoftext|>"),
        ({"prompt": "", "completion": "Hi"}, "<|begin|>Hi<|endoftext|>", "Hi<|endoftext|>"),
        ({"prompt": "Hi", "completion": ""}, "<|begin|>Hi<|endoftext|>", "<|endoftext|>"),
    ],
)
def test_texts_and_completions_begin_and_end_once(tmp_path, columns, text, learned):
    tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "a", tokenizer=with_beginning()))
    read = read_example(Record(next(iter(columns)), columns, "a test"), tokenizer, "assistant")
    ids, flags = tokenizer.encode([read.example])[0]
    flags[0] = False  # as nothing comes before it
    assert (tokenizer.decode(ids), tokenizer.decode(ids[flags])) == (text, learned)
    read = read_example(Record(next(iter(columns)), columns, "a test"), tokenizer, "all")
    assert tokenizer.encode([read.example])[0][1].all()


@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_prompt_and_completion_may_be_messages(tmp_path, loss_on):
    tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "a"))
    columns = {"prompt": turns("Hi", "Yes", "And"), "completion": [{"role": "assistant", "content": "No"}]}
    ids, flags = tokenizer.encode([read_example(Record("prompt", columns, "a test"), tokenizer, loss_on).example])[0]
    whole = tokenizer.conversation([*columns["prompt"], *columns["completion"]]).text
    assert tokenizer.decode(ids) == whole
    assert tokenizer.decode(ids[flags]) == ("No<|im_end|>" if loss_on == "assistant" else whole)


def test_parts_of_text_are_joined(tmp_path):
    tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "a"))
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"], "name": None}]
    assert "user\nab<|im_end|>" in tokenizer.decode(tokenizer.prompt_of(messages))


def real_tokenizers(shared):
    """Tokenizers in use, with the special tokens of the templates."""
    data = shared / "data"
    yield Tokenizer.from_file(str(data / "weights/hf_tinystories_656K/tokenizer.json"))
    yield Tokenizer.from_file(str(data / "tokenizers/torchtitan_test_tokenizer.json"))
    vocabulary = data / "tokenizers/gpt2_vocab.json"
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(vocabulary.with_name("gpt2_merges.txt"))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    yield tokenizer


@pytest.mark.parametrize(("which", "template"), [(0, CHATML), (1, LLAMA), (2, GEMMA)])
def test_tokens_of_real_tokenizers_are_those_of_the_whole_text_and_learned_by_their_characters(
    shared, tmp_path, template, which
):
    tokenizer = list(real_tokenizers(shared))[which]
    tokenizer.add_special_tokens([AddedToken(f"<{name}>", normalized=False) for name in ("bos", "eos")])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL[2:9]])
    folder = write_tokenizer(tmp_path / "a", template, tokenizer=tokenizer, bos_token="<bos>", eos_token="<eos>")
    ours = load_chat_tokenizer(folder)
    example = ours.conversation(turns("Hello there\n", "I am well, thank you.", "What is  this?", "A ship."))
    ids, flags = ours.encode([example])[0]
    plain = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(example.text, add_special_tokens=False)
    assert ids.tolist() == plain.ids
    end = next(name for name in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>") if name in template)
    assert list(ids[flags]).count(tokenizer.token_to_id(end)) == 2
    assert ids[np.flatnonzero(flags)[-1]] == tokenizer.token_to_id(end)
    if which != 1:  # the second one knows few letters, and no white space
        learned = " ".join(ours.decode(ids[flags]).replace(end, " ").split())
        assert learned == "I am well, thank you. A ship."


def test_white_space_that_ends_a_turn_is_learned_where_no_special_token_does(tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    template += "{% if add_generation_prompt %}assistant: {% endif %}"
    tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "a", template))
    ids, flags = tokenizer.encode([tokenizer.conversation(turns("Hi", "Yes"))])[0]
    assert tokenizer.decode(ids[flags]) == "Yes\n\n"


def test_a_text_that_spells_a_special_token_has_it_as_transformers_has(tmp_path):
    tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "a"))
    ids, _ = tokenizer.encode([Example("a<|im_end|>", None, True)])[0]
    assert len(ids) == 2


def test_a_tokenizer_of_two_files_is_copied_with_its_template(tmp_path):
    (tmp_path / "vocab.json").write_text('{"H": 0, "i": 1, "Hi": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\nH i\n")
    (tmp_path / "c.jinja").write_text("{{ messages[0].content }}")
    save_chat_tokenizer(tmp_path, tmp_path / "copy", chat_template=tmp_path / "c.jinja")
    tokenizer = load_chat_tokenizer(tmp_path / "copy")
    assert (tokenizer.size, tokenizer.end_of_text) == (4, 3)
    assert tokenizer.prompt_of(ASKED).tolist() == [2]
