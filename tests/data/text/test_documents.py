"""Documents come out as they were written, whatever the format, in bounded memory, from every position."""

import gzip
import hashlib
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.text.documents import is_held_out
from plimsoll.data.text.opening import open_documents, python_sources
from plimsoll.data.text.pieces import PIECE, cut_string
from plimsoll.errors import DataError
from plimsoll.units import KIB, MIB


def texts(documents):
    """Pieces put together again."""
    whole, open_piece = [], ""
    for piece in documents.pieces():
        open_piece += piece.text
        if piece.last:
            whole.append(open_piece)
            open_piece = ""
    assert not open_piece
    return whole


def assert_resumes_everywhere(documents):
    pieces = list(documents.pieces())
    for index, piece in enumerate(pieces):
        position = json.loads(json.dumps(piece.position))
        resumed = list(documents.pieces(position))
        # `datasets` may spell the same place in two ways, so its positions are not compared themselves
        assert [piece._replace(position={}) for piece in resumed] == [
            piece._replace(position={}) for piece in pieces[index + 1 :]
        ]


def test_markers_end_documents_where_they_occur(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n\nstill one\n<|endoftext|>\ntwo <|endoftext|>  \n <|endoftext|>three é")
    documents = open_documents(str(path))
    assert texts(documents) == ["one\n\nstill one", "two", "three é"]
    assert "at <|endoftext|> markers" in documents.describe()
    assert_resumes_everywhere(documents)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_blank_lines_end_documents_elsewhere(tmp_path, newline):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff\n\n one\nand more\n \t\n\n\n\ntwo\n\n  \n".replace("\n", newline).encode())
    documents = open_documents(str(path))
    assert texts(documents) == [f" one{newline}and more", "two"]
    assert "at blank lines" in documents.describe()
    assert_resumes_everywhere(documents)


def test_a_marker_after_the_first_mib_does_not_change_what_was_decided(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("word " * (MIB // 5 + 100) + "<|endoftext|> end")
    assert len(texts(open_documents(str(path)))) == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.text("ab é€\n", min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=8),
    st.sampled_from([1, 700, 2000]),
)
def test_a_document_of_any_length_is_put_together_from_its_pieces(tmp_path_factory, parts, repeats):
    documents = [(part * repeats).strip() for part in parts]
    path = tmp_path_factory.mktemp("long") / "a.txt"
    path.write_text("<|endoftext|>".join(documents) + "<|endoftext|>", newline="")
    opened = open_documents(str(path))
    assert texts(opened) == documents
    assert all(len(piece.text.encode()) <= PIECE for piece in opened.pieces())
    assert_resumes_everywhere(opened)


@settings(max_examples=examples(100), deadline=None)
@given(st.text("ab \n", min_size=1, max_size=40), st.integers(1, 6000), st.integers(0, 9))
def test_strings_are_cut_the_same_from_every_cut(text, repeats, start):
    text = text * repeats
    pieces = list(cut_string(text))
    assert "".join(piece for piece, _ in pieces) == text
    assert all(len(piece) <= PIECE for piece, _ in pieces)
    start = start % len(pieces)
    assert list(cut_string(text, pieces[start - 1][1] if start else 0)) == pieces[start:]


@pytest.mark.parametrize(
    ("unit", "ends"),
    [
        ("line\n", [65_535, 131_070, 150_000]),
        ("word ", [65_535, 131_070, 150_000]),
        ("xxxxx", [65_536, 131_072, 150_000]),
        ("a \nbc", [65_533, 131_068, 150_000]),  # a line break comes before a space that is later
    ],
)
def test_a_piece_is_as_long_as_it_may_be(unit, ends):
    assert [end for _, end in cut_string(unit * 30_000)] == ends
    assert [end for _, end in cut_string(unit * 30_000, ends[0])] == ends[1:]


LONG = "A long one. " * 12_000
ROWS = ["first", "second\nline", "", None, LONG, "<|endoftext|> is text here", "last é"]
EXPECTED = [row for row in ROWS if row]


def write_jsonl(path, column="text"):
    path.write_text("".join(json.dumps({"id": i, column: row}) + "\n" for i, row in enumerate(ROWS)))


def write_parquet(path, column="text"):
    table = pa.table({"id": list(range(len(ROWS))), column: ROWS})
    parquet.write_table(table, path, row_group_size=3)


@pytest.mark.parametrize(("name", "write"), [("a.jsonl", write_jsonl), ("a.parquet", write_parquet)])
@pytest.mark.parametrize("column", ["text", "story"])
def test_every_row_of_a_table_is_a_document(tmp_path, name, write, column):
    write(tmp_path / name, column)
    documents = open_documents(str(tmp_path / name), text_column=column)
    assert texts(documents) == EXPECTED
    assert documents.files[0].columns() == ["id", column]
    assert_resumes_everywhere(documents)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_read_as_the_plain_ones(tmp_path, suffix):
    compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    write_jsonl(tmp_path / "a.jsonl")
    content = (tmp_path / "a.jsonl").read_bytes()
    packed = tmp_path / f"b.jsonl{suffix}"
    packed.write_bytes(compress(content[:5000]) + compress(content[5000:]))  # two members in one file
    documents = open_documents(str(packed))
    assert texts(documents) == EXPECTED
    assert_resumes_everywhere(documents)


def test_a_folder_is_read_whole_in_the_order_of_its_names(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("b one\n\nb two")
    (tmp_path / "sub" / "c.jsonl").write_text('{"text": "c"}\n')
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a<|endoftext|>aa"))
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / ".hidden.txt").write_text("not data")
    documents = open_documents(str(tmp_path))
    assert texts(documents) == ["a", "aa", "b one", "b two", "c"]
    assert "1 jsonl file + 2 text files" in documents.describe()
    assert_resumes_everywhere(documents)
    assert texts(open_documents(str(tmp_path), max_examples=3)) == ["a", "aa", "b one"]


def test_a_position_of_other_files_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    position = next(open_documents(str(tmp_path)).pieces()).position
    (tmp_path / "b.txt").write_text("three")
    with pytest.raises(DataError, match=r"names or sizes changed"):
        next(open_documents(str(tmp_path)).pieces(position))


def test_a_folder_that_names_its_splits_streams_through_datasets(tmp_path):
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "train-00000.parquet")
    other = pa.table({"id": [0], "text": ["for the test"]})
    parquet.write_table(other, tmp_path / "data" / "test-00000.parquet")
    documents = open_documents(str(tmp_path))
    assert "streamed through datasets" in documents.describe()
    assert documents.describe().endswith("files of other splits are not read")
    assert texts(documents) == EXPECTED
    assert texts(open_documents(str(tmp_path), split="test")) == ["for the test"]
    assert max(len(json.dumps(piece.position)) for piece in documents.pieces()) < 800
    assert_resumes_everywhere(documents)
    with pytest.raises(DataError, match=r"no column 'story'; it has: id, text"):
        open_documents(str(tmp_path), text_column="story")
    with pytest.raises(DataError, match=r"split 'dev' .* cannot be streamed"):
        open_documents(str(tmp_path), split="dev")


def test_python_sources_are_the_standard_library_without_its_tests():
    documents = python_sources()
    names = [file.name for file in documents.files]
    assert names == sorted(names)
    assert not any("/tests/" in name or "/test/" in name or "-packages" in name for name in names)
    first = next(documents.pieces())
    assert first.text.strip() in Path(names[0]).read_text("utf-8")
    assert documents.bytes > MIB


@pytest.mark.parametrize("unit", ["x", "line of text\n"])
def test_a_file_of_16_mib_without_separators_needs_less_than_4(tmp_path, unit):
    path = tmp_path / "a.txt"
    path.write_text((unit * (MIB // len(unit) + 1))[:MIB] * 16)
    tracemalloc.start()
    characters = sum(len(piece.text) for piece in open_documents(str(path)).pieces())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert characters == pytest.approx(16 * MIB, abs=KIB)
    assert peak < 4 * MIB


@pytest.mark.parametrize("over", [-1, 0, 1, 53, 66, 67])
def test_a_separator_just_after_a_full_piece_does_not_lengthen_it(tmp_path, over):
    path = tmp_path / "a.txt"
    path.write_text("x" * (PIECE + over) + "<|endoftext|>y")
    documents = open_documents(str(path))
    assert texts(documents) == ["x" * (PIECE + over), "y"]
    assert max(len(piece.text) for piece in documents.pieces()) <= PIECE


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_long_document_is_held_out_as_a_whole_also_after_resuming_inside_it(tmp_path, name):
    long = [f"{i} " + "word " * 40_000 for i in range(300)]
    chosen = [text for text in long if is_held_out(next(cut_string(text))[0])][:1]
    assert chosen
    kept = [*chosen, "short", long[1]]
    content = "\n\n".join(kept) if name == "a.txt" else "".join(json.dumps({"text": t}) + "\n" for t in kept)
    (tmp_path / name).write_text(content)
    documents = open_documents(str(tmp_path / name))
    assert [piece.held_out for piece in documents.pieces()] == [True] * 4 + [False] * 5
    assert_resumes_everywhere(documents)


def test_a_position_that_an_earlier_version_saved_is_one_of_the_same_files(listed_documents):
    """By eight digits of a digest of their names and sizes, here of all they hold."""
    documents = listed_documents(["one", "two"])
    name = hashlib.blake2b(repr((["one", "two"],)).encode(), digest_size=4).hexdigest()
    saved = {"of": name, "file": 0, "at": {"row": 1}, "documents": 1, "held_out": None}
    (left,) = documents.pieces(saved)
    assert (left.text, left.position["of"]) == ("two", name)
