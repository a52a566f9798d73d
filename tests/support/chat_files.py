"""Chat templates in the style of published ones, a tokenizer of bytes with their special tokens, and chats to learn."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = [
    "<|endoftext|>", "<|begin|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|User|>", "<|Assistant|>", "<|eos|>",
]  # fmt: skip

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

MARKED = """{% for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""ChatML that says itself what the assistant writes."""

LLAMA = """{{ bos_token }}{% for message in messages -%}
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

THINKING = """{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
        {%- continue %}
    {%- endif %}
    {%- set thought, content = message.reasoning_content or '', message.content %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\n' }}
    {%- if loop.index0 > ns.last %}{{- '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}
    {{- content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
"""As Qwen3's, which leaves the thinking of earlier turns out."""

PROMPTED_THINKING = """{{ bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}{{ '<|User|>' + message.content }}
{%- else %}{{ '<|Assistant|>' + message.content.split('</think>')[-1] + '<|eos|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"""
"""As DeepSeek-R1's, whose prompt begins the thinking that no rendered turn has."""


def byte_tokenizer():
    """A token for each byte of UTF-8, then SPECIAL."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_tokenizer(folder, template=CHATML, *, tokenizer=None, **config):
    """A folder as `transformers` writes one; `template` in tokenizer_config.json, None for none."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_tokenizer()).save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|endoftext|>"}} | config
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def turns(*contents, system=None):
    """Messages of the user and the assistant by turns."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def chats(count):
    """Conversations of one to three turns of different lengths."""
    for i in range(count):
        contents = [f"{'why ' * (1 + (i * 7 + turn) % 5)}{i}?" for turn in range(2 * (1 + i % 3))]
        yield {"messages": turns(*contents, system="Be short." if i % 4 == 0 else None)}


def write_records(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
