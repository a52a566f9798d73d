"""Connections between the processes of a run: who may connect, and what arrives."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from plimsoll.errors import RunError
from plimsoll.processes import connections
from plimsoll.processes.connections import Port, connect

HOST = "127.0.0.1"


@pytest.fixture
def ends():
    """Both ends of a connection, the first process's and that of number 1."""
    with closing(Port(3)) as opened:
        other = connect(HOST, opened.address, 1)
        (first,) = opened.accepted([1]).values()
    yield first, other
    first.close()
    other.close()


def test_messages_arrive_whole_and_in_their_order(ends):
    first, other = ends
    messages = [b"", b"x", bytes(3_000_000), b"end"]  # more than a socket holds
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(lambda: [first.receive() for _ in messages])
        for message in messages:
            other.send(message)
        assert received.result() == messages


def test_a_message_is_received_into_an_array_of_its_size_alone(ends):
    first, other = ends
    message, out = bytes(range(256)) * 8_000, bytearray(256 * 8_000)
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(first.receive_into, memoryview(out))
        other.send(message)
        received.result()
    assert out == message
    other.send(b"abc")
    with pytest.raises(OSError, match="3 bytes have come for 2"):
        first.receive_into(memoryview(bytearray(2)))


@pytest.mark.parametrize("begun", [b"", b"\0\0\0", connections.LENGTH.pack(10) + b"half"])
@pytest.mark.parametrize("into", [False, True])
def test_a_message_that_does_not_arrive_whole_is_none(ends, begun, into):
    first, other = ends
    other._socket.sendall(begun)
    other.close()
    with pytest.raises(OSError, match="the other end is closed"):
        first.receive_into(memoryview(bytearray(10))) if into else first.receive()


def test_where_the_other_end_is_closed_nothing_is_sent(ends):
    first, other = ends
    first.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        other.send(bytes(100_000_000))


def test_each_process_has_its_connection_and_who_does_not_know_the_key_has_none():
    with closing(Port(3)) as opened:
        address = opened.address
        strangers = [socket.create_connection((HOST, address["port"])) for _ in range(3)]
        strangers[0].close()
        strangers[1].sendall(bytes(connections.KEY_BYTES) + connections.NUMBER.pack(1))  # another key
        strangers[2].sendall(b"GET / HTTP/1.1\r\n\r\n")
        strangers[2].shutdown(socket.SHUT_WR)
        others = {process: connect(HOST, address, process) for process in (3, 1)}
        found = opened.accepted([1, 3])
        assert found.keys() == {1, 3}
        for process, connection in found.items():
            connection.send(f"to {process}".encode())
            others[process]._socket.settimeout(10)  # should a stranger have its place
            assert others[process].receive() == f"to {process}".encode()
        for stranger in strangers[1:]:
            assert stranger.recv(1) == b""


def test_one_that_has_not_connected_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(connections, "REACH_SECONDS", 0.01)
    with closing(Port(3)) as opened, pytest.raises(RunError, match="process 2 of this run said that it is connected"):
        opened.accepted([2])


def test_a_port_that_does_not_answer_is_a_sentence():
    with closing(Port(3)) as opened:
        address = opened.address
    with pytest.raises(RunError, match=rf"process 1 does not reach port {address['port']} of {HOST}"):
        connect(HOST, address, 1)
