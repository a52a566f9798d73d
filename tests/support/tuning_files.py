"""A tiny published model with a tokenizer of bytes, and records to tune it on."""

from dataclasses import replace

from chat_files import CHATML, byte_tokenizer, chats, write_records, write_tokenizer
from making import made
from pretrained_folders import LLAMA, write

SHAPE = replace(LLAMA, vocab=byte_tokenizer().get_vocab_size(), layers=2)


def write_model(folder, shape=SHAPE, *, template=CHATML, tensors=None, **changed):
    write(folder, shape, tensors, **changed)
    return write_tokenizer(folder, template)


def write_chats(path, count=60):
    return write_records(path, chats(count))


def small(folder, **changed):
    """The recipe around a model and chats in this folder, which are made where they are not there."""
    if not (folder / "model").exists():
        write_model(folder / "model")
        write_chats(folder / "chats.jsonl")
    fields = {"pretrained": str(folder / "model"), "dataset_id": str(folder / "chats.jsonl"), "lora_rank": 4}
    return made("finetune", **fields | {"seq_len": 128, "batch_size": 4, "steps": 6} | changed)
