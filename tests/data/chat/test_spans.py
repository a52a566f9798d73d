"""What of a conversation is learned: the assistant's turns with their ends, in templates of all styles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chat_files
from chat_files import turns, write_tokenizer
from plimsoll.data.chat.messages import checked_messages
from plimsoll.data.chat.spans import assistant_spans
from plimsoll.data.chat.template import ChatTemplate
from plimsoll.data.chat.tokenizer import load_chat_tokenizer
from plimsoll.errors import DataError


@pytest.fixture(scope="module")
def tokenizer_with(tmp_path_factory):
    made = {}

    def make(template):
        if template not in made:
            folder = tmp_path_factory.mktemp("tokenizer")
            made[template] = load_chat_tokenizer(write_tokenizer(folder, template))
        return made[template]

    return make


def learned(tokenizer, messages, **options):
    """The whole conversation, and the text of each run of tokens that is learned."""
    example = tokenizer.conversation(checked_messages(messages, "a test"), where="a test", **options)
    ids, flags = tokenizer.encode([example])[0]
    parts, inside = [], False
    for token, flag in zip(ids, flags, strict=True):
        if flag and not inside:
            parts.append([])
        if flag:
            parts[-1].append(token)
        inside = flag
    return tokenizer.decode(ids), [tokenizer.decode(part) for part in parts]


ENDS = {"CHATML": "<|im_end|>", "MARKED": "<|im_end|>", "LLAMA": "<|eot_id|>", "GEMMA": "<end_of_turn>"}


@pytest.mark.parametrize("style", ENDS)
def test_turns_of_the_assistant_are_learned_with_the_token_that_ends_them(tokenizer_with, style):
    messages, end = turns("Hi", "Hello, wörld.", "And?\n", "Done"), ENDS[style]
    tokenizer = tokenizer_with(getattr(chat_files, style))
    text, parts = learned(tokenizer, messages)
    assert parts == [f"Hello, wörld.{end}", f"Done{end}"]
    assert text.count("Hi") == 1
    assert learned(tokenizer, messages, first=3)[1] == [f"Done{end}"]  # of a prompt none is
    assert text.startswith("<|begin|>") == (style in ("LLAMA", "GEMMA"))


def test_an_earlier_turn_is_learned_as_it_stands_where_a_template_leaves_its_thinking_out(tokenizer_with):
    inside = turns("1+1?", "<think>\neasy\n</think>\n\n2", "And 2+2?", "<think>\nharder\n</think>\n\n4")
    beside = turns("1+1?", "2", "And 2+2?", "4")
    beside[1]["reasoning"], beside[3]["thinking"] = "easy", "harder"
    for messages in (inside, beside):
        text, parts = learned(tokenizer_with(chat_files.THINKING), messages)
        assert "easy" not in text
        assert parts == ["2<|im_end|>", "<think>\nharder\n</think>\n\n4<|im_end|>"]


def test_a_prompt_that_begins_a_thought_does_not_hide_the_answer(tokenizer_with):
    messages = turns("1+1?", "<think>easy</think>2", "And?", "<b>4</b>")  # begins as the prompt's <think> does
    text, parts = learned(tokenizer_with(chat_files.PROMPTED_THINKING), messages)
    assert text == "<|begin|><|User|>1+1?<|Assistant|>2<|eos|><|User|>And?<|Assistant|><b>4</b><|eos|>"
    assert parts == ["2<|eos|>", "<b>4</b><|eos|>"]


@pytest.mark.parametrize("more", [" ", "<|endoftext|>", "\n<|endoftext|>"])
def test_what_a_template_writes_after_the_last_turn_does_not_hide_earlier_ones(tokenizer_with, more):
    template = chat_files.CHATML + "{% if not add_generation_prompt %}{{ '" + more + "' }}{% endif %}"
    text, parts = learned(tokenizer_with(template), turns("Hi", "Yes", "And", "No"))
    assert text.endswith("No<|im_end|>\n" + more)
    assert parts == ["Yes<|im_end|>", ("No<|im_end|>\n" + more).rstrip()]


def test_a_turn_that_cannot_be_found_is_refused_with_the_reason(tokenizer_with):
    numbered = "{% for m in messages %}{{ m.role + ' of ' ~ messages | length + ': ' + m.content | upper }}{% endfor %}"
    with pytest.raises(
        DataError, match=r"message 2 of a test: .* another way once other messages follow.*--loss-on all"
    ):
        learned(tokenizer_with(numbered), turns("Hi", "Yes", "And", "no"))


def test_all_tokens_are_learned_where_that_is_asked(tokenizer_with):
    text, parts = learned(tokenizer_with(chat_files.LLAMA), turns("Hi", "Yes"), learn_all=True)
    assert parts == [text]


def test_two_turns_in_a_row_are_both_learned(tokenizer_with):
    messages = [*turns("Hi", "Yes"), {"role": "assistant", "content": "No"}]
    assert learned(tokenizer_with(chat_files.CHATML), messages)[1] == ["Yes<|im_end|>", "No<|im_end|>"]


def test_tools_and_their_calls_reach_the_template(tokenizer_with):
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": "<é>"}}}],
    }
    messages = [*turns("Hi"), call, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "It is 7"}]
    text, parts = learned(tokenizer_with(template), messages, tools=[{"name": "f"}])
    assert text.startswith('[{"name": "f"}]')
    assert parts == ['{"name": "f", "arguments": {"x": "<é>"}}<|im_end|>', "It is 7<|im_end|>"]


MARKED, CHATML = (
    ChatTemplate(source, tokens={"bos_token": "<|begin|>"}, name="a test")
    for source in (chat_files.MARKED, chat_files.CHATML)
)
CONTENT = st.text(st.characters(codec="utf-8", exclude_characters="<>\ue000\ue001"), max_size=12)


@given(st.lists(CONTENT, min_size=2, max_size=7), st.one_of(st.none(), CONTENT))
def test_whatever_is_said_a_template_that_marks_its_turns_and_one_that_does_not_agree(contents, system):
    messages = turns(*contents, system=system)
    found = [
        assistant_spans(template, messages, special={"<|im_end|>"}, where="a test") for template in (MARKED, CHATML)
    ]
    assert found[0] == found[1]
    answers = [message["content"] + "<|im_end|>" for message in messages if message["role"] == "assistant"]
    assert [found[0].text[start:end] for start, end in found[0].spans] == answers
