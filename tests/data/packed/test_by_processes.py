"""Text that the processes of a run encode together: the folder of one process, shared work, and what goes wrong."""

import errno
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from plimsoll.data.packed import by_processes, encoding
from plimsoll.data.packed.by_processes import helped_by, receive_folder, send_folder, wait_and_encode
from plimsoll.data.packed.kept import tokenised
from plimsoll.data.packed.packed import DOCUMENTS, TOKENS, VALIDATION
from plimsoll.data.text.opening import open_documents
from plimsoll.errors import DataError, RunError
from plimsoll.processes import connections
from told import PATIENCE, Told

FILES = TOKENS, VALIDATION, DOCUMENTS


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoding, "BLOCK", 256)
    (tmp_path / "a.txt").write_text("\n\n".join(f"document {i} with {i % 7} words" for i in range(900)))
    return tmp_path / "a.txt"


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def together(board, processes, text, tokenizer):
    """Tokenises by so many processes; returns what the first found, and what it said."""
    said = []

    def first():
        try:
            with helped_by(board, processes):
                return tokenised(open_documents(str(text)), tokenizer, said.append)
        finally:
            board.write("session", "begins")

    with ThreadPoolExecutor(processes) as threads:
        others = [threads.submit(wait_and_encode, board, number, "session") for number in range(1, processes)]
        packed = threads.submit(first)
        assert [other.result() for other in others] == ["begins"] * (processes - 1)
        return packed.result(), said


@pytest.mark.parametrize("processes", [2, 3])
def test_the_folder_is_that_of_one_process_and_each_encoded_its_share(
    processes, text, byte_tokenizer, monkeypatch, tmp_path
):
    alone = contents(tokenised(open_documents(str(text)), byte_tokenizer, str).folder)
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "other"))
    encoded = []
    message = by_processes._message

    def counted(ids, lengths):
        encoded.append(len(ids))
        return message(ids, lengths)

    monkeypatch.setattr(by_processes, "_message", counted)
    packed, _ = together(Told(), processes, text, byte_tokenizer)
    assert contents(packed.folder) == alone
    others = sum(encoded) / (packed.tokens + packed.validation_tokens)
    assert others == pytest.approx(1 - 1 / processes, abs=0.02)


def test_what_is_there_already_is_not_encoded_again(text, byte_tokenizer):
    before = tokenised(open_documents(str(text)), byte_tokenizer, str)
    board = Told()
    packed, said = together(board, 2, text, byte_tokenizer)
    assert packed == before
    assert said == []
    assert list(board.values) == ["session"]


def test_one_that_has_another_text_does_not_help(text, byte_tokenizer, monkeypatch):
    """Of the same name and size: its ids would be kept under the digest of the first one's text."""
    documents = by_processes._documents

    def other(asked):
        content = text.read_text()
        text.write_text(content[::-1])
        try:
            return documents(asked)
        finally:
            text.write_text(content)

    alone = contents(tokenised(open_documents(str(text)), byte_tokenizer, str).folder)
    monkeypatch.setenv("PLIMSOLL_CACHE", str(text.with_name("other")))
    monkeypatch.setattr(by_processes, "_documents", other)
    board = Told()
    packed, said = together(board, 2, text, byte_tokenizer)
    assert contents(packed.folder) == alone
    assert f"tokens: process 1 does not take part: {text} holds another text here" in said


@pytest.mark.parametrize("change", ["other words", "shorter", "longer"])
def test_another_text_with_the_same_facts_is_found_by_its_blocks(text, byte_tokenizer, monkeypatch, change):
    """What is compared before is the beginning, middle and end of a large file."""
    other = text.with_name("other.txt")
    words = text.read_text()
    changed = {"other words": words.replace("300 with", "300 What"), "shorter": words[: len(words) // 2]}
    other.write_text(changed.get(change, 2 * words))
    monkeypatch.setattr(by_processes, "files_facts", lambda paths: "alike")
    documents = by_processes._documents
    monkeypatch.setattr(
        by_processes, "_documents", lambda asked: documents({**asked, "files": [[str(other), *asked["files"][0][1:]]]})
    )
    with pytest.raises(DataError, match="process 1 reads another text than the first process under the same name"):
        together(Told(), 2, text, byte_tokenizer)


def test_what_another_refuses_is_raised_and_nothing_is_kept(text, byte_tokenizer, monkeypatch):
    every = by_processes._every

    def refusing(of, share, step):
        yield next(every(of, share, step))
        raise DataError("a.txt changed while it was being read")

    monkeypatch.setattr(by_processes, "_every", refusing)
    with pytest.raises(DataError, match=r"process 1 says: a\.txt changed while it was being read"):
        together(Told(), 2, text, byte_tokenizer)
    assert not list((text.with_name("cache") / "tokens").glob("*.part"))


def test_a_text_that_changed_on_another_is_not_kept(text, byte_tokenizer, monkeypatch):
    facts = by_processes.files_facts
    answers = iter([facts, facts, lambda paths: "other"])  # the first one's, the other's before it and after
    monkeypatch.setattr(by_processes, "files_facts", lambda paths: next(answers)(paths))
    with pytest.raises(DataError, match=r"process 1 says: .*a\.txt changed on process 1 while it was tokenised"):
        together(Told(), 2, text, byte_tokenizer)


def test_where_the_first_takes_no_more_the_others_encode_no_more(text, byte_tokenizer):
    board = Told()

    def first():
        with helped_by(board, 2), by_processes.opened(open_documents(str(text)), byte_tokenizer, None, str):
            raise RuntimeError("stopped")

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(wait_and_encode, board, 1, "session")
        with pytest.raises(RuntimeError, match="stopped"):
            first()
        board.write("session", "begins")
        assert other.result(PATIENCE) == "begins"


def test_one_that_does_not_reach_the_first_does_not_help(text, byte_tokenizer, monkeypatch):
    def unreachable(host, address, process):
        with socket.socket() as bound:  # nothing listens there
            bound.bind(("127.0.0.1", 0))
            return connections.connect(host, address | {"port": bound.getsockname()[1]}, process)

    alone = contents(tokenised(open_documents(str(text)), byte_tokenizer, str).folder)
    monkeypatch.setenv("PLIMSOLL_CACHE", str(text.with_name("other")))
    monkeypatch.setattr(by_processes, "connect", unreachable)
    packed, said = together(Told(), 2, text, byte_tokenizer)
    assert contents(packed.folder) == alone
    (line,) = (line for line in said if "does not take part" in line)
    assert re.search(
        r"process 1 does not reach port \d+ of 127\.0\.0\.1, the first process \(.*refused\): let ports", line
    )


def test_where_the_connection_to_another_breaks_the_first_says_so_once_nobody_has(text, byte_tokenizer, monkeypatch):
    monkeypatch.setattr(by_processes, "_send_share", lambda *of: None)
    monkeypatch.setattr(connections, "SILENT_SECONDS", 0.01)
    with pytest.raises(RunError, match=r"connection to process 1 broke \(the other end is closed\), and nobody says"):
        together(Told(), 2, text, byte_tokenizer)


def test_what_another_refuses_after_its_last_block_is_raised(text, byte_tokenizer, monkeypatch):
    def gone(*of):
        raise FileNotFoundError("a.txt is gone")

    monkeypatch.setattr(by_processes, "_require_unchanged", gone)
    with pytest.raises(DataError, match=r"process 1 says: a\.txt is gone"):
        together(Told(), 2, text, byte_tokenizer)


@pytest.fixture
def second(text, monkeypatch):
    """The cache of the other process, which is any thread but this one."""
    there = threading.local()
    there.folder = text.with_name("cache")
    folder = text.with_name("second")
    there.folder.mkdir()
    monkeypatch.setattr(by_processes.cache, "cache_folder", lambda: getattr(there, "folder", folder))
    folder.mkdir()
    return folder


def sent(packed):
    """Sends the folder to one other process; returns what becomes of that."""
    board = Told()
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(receive_folder, board, 1, packed.folder.name)
        send_folder(board, packed.folder.name, [1])
    return received


def test_the_folder_is_sent_to_a_process_with_another_cache(text, byte_tokenizer, monkeypatch, second):
    monkeypatch.setattr(by_processes, "PIECE_BYTES", 1000)
    packed = tokenised(open_documents(str(text)), byte_tokenizer, str)
    sent(packed).result()
    assert [path.name for path in second.glob("tokens/*")] == [packed.folder.name]
    assert contents(second / "tokens" / packed.folder.name) == contents(packed.folder)


def test_a_folder_that_was_damaged_before_it_was_sent_is_not_kept(text, byte_tokenizer, second):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, str)
    path = packed.folder / TOKENS
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=f"did not arrive as it was sent: {TOKENS} has another SHA-256"):
        sent(packed).result()
    assert list(second.glob("tokens/*")) == []


def test_a_folder_whose_end_does_not_arrive_is_not_kept(text, byte_tokenizer, monkeypatch, second):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, str)
    monkeypatch.setattr(by_processes, "PIECE_BYTES", 1000)
    send, count = connections.Connection.send, 0

    def cut(connection, message):
        nonlocal count
        count += 1
        if count == 2:
            connection.close()
            raise BrokenPipeError
        send(connection, message)

    monkeypatch.setattr(connections.Connection, "send", cut)
    monkeypatch.setattr(connections, "SILENT_SECONDS", 0.01)
    with pytest.raises(RunError, match="the connection to process 0 broke"):
        sent(packed).result()
    assert list(second.glob("tokens/*")) == []


def test_a_folder_for_which_others_took_the_room_is_left_out(text, byte_tokenizer, monkeypatch, second):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, str)

    def full(*of):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(by_processes, "_put", full)
    sent(packed).result()
    assert list(second.glob("tokens/*")) == []


def test_without_room_for_it_a_folder_is_not_sent(text, byte_tokenizer, monkeypatch, second):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, str)
    monkeypatch.setattr(by_processes, "free_bytes", lambda folder: 0)
    sent(packed).result()
    assert list(second.glob("tokens/*")) == []
