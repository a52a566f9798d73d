"""Templates are rendered as `transformers` renders them, in a sandbox."""

from datetime import datetime

import pytest

from chat_files import turns
from plimsoll.data.chat.template import ChatTemplate
from plimsoll.errors import DataError


def rendered(source, messages=(), **tokens):
    template = ChatTemplate(source, tokens=tokens, name="x.jinja", now=datetime(2026, 3, 4, 5, 6))
    return template.render(list(messages), where="line 3").text


def test_blocks_leave_no_lines_and_special_tokens_are_known():
    source = "{{ bos_token }}\n  {% if true %}\n  a\n  {% endif %}\n{{ no_such_token }}|"
    assert rendered(source, bos_token="<s>") == "<s>\n  a\n|"
    assert rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_json_keeps_its_characters():
    source = "{{ messages | tojson }} {{ messages[0] | tojson(indent=1) }}"
    assert rendered(source, [{"a": "<é>'&"}]) == '[{"a": "<é>\'&"}] {\n "a": "<é>\'&"\n}'


def test_the_day_is_the_one_that_was_given_and_is_known_to_matter():
    source = "{{ strftime_now('%d %b %Y') }}"
    assert rendered(source) == "04 Mar 2026"
    template = ChatTemplate(source, tokens={}, name="x", now=datetime(2026, 3, 4))
    assert template.day == "2026-03-04"
    assert ChatTemplate("a", tokens={}, name="x").day is None


def test_half_of_a_surrogate_pair_becomes_a_question_mark():
    assert rendered("{{ messages[0].content }}", [{"content": "a\ud83dé"}]) == "a?é"


BAD = {
    "it raises": ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
    "Python's internals": ("{{ messages.__class__.__mro__ }}", "SecurityError"),
    "changing what it is given": ("{{ messages.append(1) }}", "SecurityError"),
    "a macro without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "a missing key": ("{{ messages[0].content.text.text }}", "UndefinedError"),
    "arithmetic of text": ("{{ 1 + 'a' }}", "TypeError"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_template_that_fails_is_refused_with_the_record(case):
    source, reason = BAD[case]
    with pytest.raises(DataError) as caught:
        rendered(source, turns("a"))
    message = str(caught.value)
    assert message.startswith("line 3 cannot be rendered by the chat template x.jinja (")
    assert reason in message
    assert "--chat-template FILE" in message
    assert "\n" not in message


@pytest.mark.parametrize("source", ["{{ a", "{% generation %}"])
def test_what_is_no_template_is_refused(source):
    with pytest.raises(DataError, match=r"x.jinja is no chat template \(.*--chat-template FILE"):
        ChatTemplate(source, tokens={}, name="x.jinja")


def test_a_generation_block_that_is_moved_is_refused():
    source = "{% set a %}{% generation %}b{% endgeneration %}{% endset %}longer {{ a }}"
    with pytest.raises(DataError, match=r"x.jinja moves or changes what a generation block wrote"):
        ChatTemplate(source, tokens={}, name="x.jinja").render([], where="line 3")
