# ruff: noqa: E501 (a case is a line)
"""What cannot be read is refused in one paragraph: what was asked, what was found, what to do."""

import gzip
import hashlib
import io
import os

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zstandard

from making import made
from plimsoll.data.text.opening import open_documents, require_named
from plimsoll.errors import DataError, RecipeError
from programs import printed


def refusal(path, **options):
    with pytest.raises(DataError) as caught:
        list(open_documents(str(path), **options).pieces())
    message = str(caught.value)
    assert "\n" not in message
    return message


def parquet_bytes(columns):
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


NOISE = bytes(range(256)) * 2000  # does not shrink away, so that half of it really is half
LINES = b"".join(b'{"text": "%s"}\n' % hashlib.sha256(b"%d" % i).hexdigest().encode() for i in range(2000))
GZ, ZST = gzip.compress(LINES), zstandard.ZstdCompressor().compress(LINES)

BAD = {
    "binary text": ("a.txt", NOISE, ["a.txt is not UTF-8 text", "byte 128 ", "iconv"]),
    "latin-1 text": ("a.txt", "Grüße".encode("latin-1"), ["not UTF-8 text", "byte 2 "]),
    "empty file": ("a.txt", b"", ["holds no documents", "a.txt"]),
    "white space": ("a.txt", b" \n\n \n", ["holds no documents"]),
    "no rows": ("a.jsonl", b"\n\n", ["holds no documents"]),
    "a line that is not JSON": ("a.jsonl", b'{"text": "a"}\n{"text": \n', ["line 2 of", "is not JSON", "{\"text\": "]),
    "a line that is a list": ("a.jsonl", b"[1, 2]\n", ["line 1 of", "is a JSON list, not an object"]),
    "jsonl without the column": ("a.jsonl", b'{"story": "a", "id": 1}\n', ["no column 'text'", "story, id", "--text-column"]),
    "jsonl with numbers": ("a.jsonl", b'{"text": 7}\n', ["column 'text' of line 1", "holds int, not text"]),
    "jsonl in latin-1": ("a.jsonl", b'{"text": "a"}\n{"text": "\xfc"}\n', ["line 2 of", "is not JSON in UTF-8", "position 10"]),
    "parquet without the column": ("a.parquet", parquet_bytes({"story": ["a"], "id": [1]}), ["no column 'text'", "story, id"]),
    "parquet with numbers": ("a.parquet", parquet_bytes({"text": [1]}), ["holds int, not text"]),
    "broken parquet": ("a.parquet", b"PAR1 and no more", ["not a readable .parquet file"]),
    "truncated parquet": ("a.parquet", parquet_bytes({"text": ["a"] * 1000})[:-20], ["not a readable .parquet file"]),
    "broken gzip": ("a.txt.gz", b"not gzip at all", ["cannot be decompressed", "not .gz"]),
    "truncated gzip": ("a.jsonl.gz", GZ[: len(GZ) // 2], ["cannot be decompressed", "ended before"]),
    "damaged gzip": ("a.jsonl.gz", GZ[:-8] + b"xxxx" + GZ[-4:], ["cannot be decompressed"]),
    "broken zstd": ("a.txt.zst", b"not zstd at all", ["cannot be decompressed", "not .zst"]),
    "truncated zstd": ("a.jsonl.zst", ZST[: len(ZST) // 2], ["is truncated"]),
    "an unknown kind": ("a.pdf", b"%PDF", ["a.pdf is of no kind that is read", ".jsonl"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path, case):
    name, content, expected = BAD[case]
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name)
    for part in expected:
        assert part in message


def test_a_line_longer_than_the_limit_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "' + b"x" * 17 * 2**20 + b'"}\n')
    assert "longer than 16.0 MiB" in refusal(tmp_path / "a.jsonl")


def test_a_folder_without_text_says_what_it_holds(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.png").write_bytes(b"")
    assert "2 .png" in refusal(tmp_path)


def test_max_examples_must_be_positive(tmp_path):
    with pytest.raises(RecipeError, match=r"--max-examples must be 1 or more documents, got 0"):
        open_documents(str(tmp_path), max_examples=0)


def test_a_hub_that_cannot_be_reached_is_said():
    program = (
        "from plimsoll.data.text.opening import open_documents\n"
        "from plimsoll.errors import DataError\n"
        "try: open_documents('plimsoll-no-such-org/no-such-set', config='small')\n"
        "except DataError as error: print(error)\n"
    )
    said = printed(program, environment=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert "plimsoll-no-such-org/no-such-set, config 'small' cannot be streamed (" in said
    assert "huggingface.co can be reached" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "name",
    ["/nonexist", "./x", "../x/y", "~/no-such-file", "~no-such-user/x", "x.txt", "a/x.txt", "a/x.jsonl.gz", "a/x.parquet",
     "a/x.json", "a/x.csv", "no-slash", "a/b/c", "here/x", "my-texts/", "x" * 300],
)  # fmt: skip
def test_a_file_that_is_missing_is_not_taken_for_a_stream(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError, match=r"^there is no such path: '.* is no file or folder here .*Check the path\.$"):
        require_named(name)
    recipe = made("stories", dataset_id=name, vocab_size=300, steps=9)
    with pytest.raises(DataError, match=r"^there is no such path: "):
        recipe.data.memory(None, recipe.reading, prefetch=0)


def test_what_is_here_and_what_looks_like_an_id_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.txt").write_text("text")
    assert [require_named(name) for name in ("a", "./a", "a/x.txt", "org/name", "org/name-1.5B")] == [True] * 3 + [
        False
    ] * 2
