"""Records of every format: the same examples in their order, from files, folders, compressed or streamed."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from chat_files import chats, turns, write_records
from plimsoll.data.chat.records import open_records

CHATS = list(chats(150))


def write_jsonl(folder):
    return write_records(folder / "a.jsonl", CHATS)


def write_gz(folder):
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(write_jsonl(folder).read_bytes()))
    return folder / "a.jsonl.gz"


def write_json(folder):
    (folder / "a.json").write_text(json.dumps(CHATS, indent=1))
    return folder / "a.json"


def write_parquet(folder):
    table = pa.Table.from_pylist([record | {"id": number} for number, record in enumerate(CHATS)])
    parquet.write_table(table, folder / "a.parquet", row_group_size=70)
    return folder / "a.parquet"


def write_folder(folder):
    write_records(folder / "a.jsonl", CHATS[:40])
    (folder / "b").mkdir()
    write_records(folder / "b/c.jsonl", CHATS[40:])
    return folder


def write_splits(folder):
    """A folder whose names tell splits apart, which `datasets` reads as a stream."""
    parquet.write_table(pa.Table.from_pylist(CHATS), folder / "train-0.parquet")
    parquet.write_table(pa.Table.from_pylist(CHATS[:1]), folder / "test-0.parquet")
    return folder


WAYS = [write_jsonl, write_gz, write_json, write_parquet, write_folder, write_splits]


@pytest.mark.parametrize("write", WAYS, ids=lambda write: write.__name__.removeprefix("write_"))
def test_every_format_holds_the_same_records(tmp_path, write):
    path = write(tmp_path)
    records = list(open_records(str(path)))
    assert [{"messages": record.columns["messages"]} for record in records] == CHATS
    assert {record.kind for record in records} == {"messages"}
    assert len({record.where for record in records}) == len(CHATS)
    assert all(str(path) in record.where for record in records)
    assert len(list(open_records(str(path), max_examples=7))) == 7


def test_a_stream_of_local_files_is_known_by_what_they_hold_and_another_split_may_be_named(tmp_path):
    write_splits(tmp_path)
    assert len(list(open_records(str(tmp_path), split="test"))) == 1
    before = open_records(str(tmp_path)).facts()
    assert open_records(str(tmp_path)).facts() == before
    parquet.write_table(pa.Table.from_pylist(CHATS[::-1]), tmp_path / "train-0.parquet")
    assert open_records(str(tmp_path)).facts() != before


def test_the_first_record_decides_the_kind(tmp_path):
    both = {"messages": turns("a", "b"), "text": "a"}
    path = write_records(tmp_path / "b.jsonl", [both, both | {"text": None}])
    assert [record.kind for record in open_records(str(path))] == ["messages"] * 2
