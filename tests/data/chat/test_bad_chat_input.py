# ruff: noqa: E501 (a case is a line)
"""Examples that cannot be learned from are refused in one paragraph: which record, what it holds, what to do."""

import json

import pytest

from chat_files import CHATML, GEMMA, turns, write_records, write_tokenizer
from plimsoll.data.chat.kept import encoded_examples
from plimsoll.data.chat.records import open_records
from plimsoll.data.chat.tokenizer import load_chat_tokenizer
from plimsoll.errors import DataError, RecipeError

GOOD = json.dumps({"messages": turns("Hi", "Yes")}) + "\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))


def refusal(path, template=CHATML, **options):
    """What is said of a file that is encoded; nothing of it is left in the cache."""
    tokenizer = load_chat_tokenizer(write_tokenizer(path.parent / "tokenizer", template))
    with pytest.raises(DataError) as caught:
        encoded_examples(open_records(str(path)), tokenizer, say=lambda words: None, **options)
    left = list((path.parent / "cache").glob("tokens/*"))
    assert not left
    message = str(caught.value)
    assert "\n" not in message
    return message


def of(*messages):
    return (GOOD + json.dumps({"messages": list(messages)}) + "\n").encode()


USER, ANSWER = turns("Hi", "Yes")
IMAGE = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": "x"}]}
BAD = {
    "a system message in the middle": (of(USER, {"role": "system", "content": "x"}, ANSWER), ["message 2 of line 2 of", "the role 'system', which only the first message may have"]),
    "an unknown role": (of(USER, {"role": "asistant", "content": "x"}), ["message 2 of line 2 of", "the role 'asistant', which is none of system, developer, user, assistant"]),
    "no messages": (of(), ["messages of line 2 of", "is empty: a list of at least one message"]),
    "a message that is text": (of("Hi"), ["message 1 of line 2 of", "is a str: an object with role and content"]),
    "content of null": (of(USER, {"role": "assistant", "content": None}), ["message 2 of line 2 of", "has no content (null)"]),
    "content that is a number": (of({"role": "user", "content": 7}), ["content of message 1 of line 2 of", "is a int: text was expected"]),
    "an image": (of(IMAGE, ANSWER), ["content of message 1 of line 2 of", "a part of the type 'image_url'", "text alone"]),
    "a record that is a list": (GOOD.encode() + b"[1, 2]\n", ["line 2 of", "is a JSON list, not an object"]),
    "columns of nothing known": (b'{"conversations": [], "id": 1}\n', ["line 1 of", "has conversations, id, which is no example", "`prompt` and `completion`"]),
    "messages of null": (GOOD.encode() + b'{"messages": null}\n', ["line 2 of", "has no messages"]),
    "a prompt without completion": (b'{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n', ["line 2 of", "has no completion"]),
    "a prompt of messages alone": (json.dumps({"prompt": [USER], "completion": "b"}).encode(), ["prompt of line 1 of", "is a list and its completion a str"]),
    "tools that are text": (json.dumps({"messages": [USER, ANSWER], "tools": "f"}).encode(), ["tools of line 1 of", "is a str: a list of objects"]),
    "nothing": (b"\n\n", ["holds no records"]),
    "nobody answers": (json.dumps({"messages": [USER]}).encode(), ["has nothing to learn", "1 documents", "--loss-on all"]),
    "only white space": (b'{"text": " "}\n', ["has nothing to learn", "1 records are empty"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_records_that_are_no_examples_are_refused_with_the_line_and_the_reason(tmp_path, case):
    content, expected = BAD[case]
    (tmp_path / "a.jsonl").write_bytes(content)
    message = refusal(tmp_path / "a.jsonl")
    for part in expected:
        assert part in message, message


def test_roles_that_a_template_refuses_are_refused_with_the_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(of(USER, USER, ANSWER))
    message = refusal(tmp_path / "a.jsonl", GEMMA)
    assert "line 2 of" in message
    assert "Conversation roles must alternate" in message


def test_conversations_need_a_template(tmp_path):
    message = refusal(write_records(tmp_path / "a.jsonl", [{"messages": [USER, ANSWER]}]), None)
    assert "line 1 of" in message
    assert "has no chat template" in message
    assert "--chat-template FILE" in message


def test_a_list_in_json_may_not_be_larger_than_memory_allows(tmp_path):
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(65 * 2**20)
    message = refusal(tmp_path / "a.json")
    assert "has 65.0 MiB, and a .json file is parsed whole: up to 64.0 MiB" in message
    assert "jq -c" in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{}", "is a JSON dict, not a list"), (b"[", "is not JSON"), (b"[7]", "record 1 of")],
)
def test_a_json_file_is_one_list_of_objects(tmp_path, content, reason):
    (tmp_path / "a.json").write_bytes(content)
    assert reason in refusal(tmp_path / "a.json")


def test_plain_text_and_what_is_not_there_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"a\.txt is plain text, .*\{\"text\": "):
        open_records(str(tmp_path / "a.txt"))
    with pytest.raises(DataError, match="there is no such path"):
        open_records(str(tmp_path / "b.jsonl"))
    with pytest.raises(RecipeError, match="--max-examples must be 1 or more, got 0"):
        open_records(str(tmp_path), max_examples=0)


def test_templates_that_are_not_there_or_not_named_are_refused(tmp_path):
    folder = write_tokenizer(tmp_path / "a")
    with pytest.raises(DataError, match=r"--chat-template .*none\.jinja cannot be read as text"):
        load_chat_tokenizer(folder, chat_template=tmp_path / "none.jinja")
    (tmp_path / "latin.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"latin\.jinja cannot be read as text.*UTF-8"):
        load_chat_tokenizer(folder, chat_template=tmp_path / "latin.jinja")
    named = write_tokenizer(tmp_path / "b", [{"name": "rag", "template": "x"}])
    with pytest.raises(DataError, match="chat templates named rag, and none named default"):
        load_chat_tokenizer(named)
