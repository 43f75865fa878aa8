"""The socket that a daemon listens on: what the kernel may hold of each connection."""

from __future__ import annotations

import socket

import pytest

from callboard import UsageError
from callboard.actors.daemon.http_server import SEND_BUFFER_BYTES, listening_socket


def test_the_kernel_holds_little_for_a_client_that_does_not_read() -> None:
    with (
        listening_socket("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname(), timeout=10),
        listening.accept()[0] as connection,
    ):
        connection.setblocking(False)
        before = sent_until_full(connection) - held_by_the_reader(connection)
        assert before <= 3 * SEND_BUFFER_BYTES  # without a bound of its own it is 4 MB and more


def sent_until_full(connection: socket.socket) -> int:
    sent = 0
    while True:
        try:
            sent += connection.send(b"x" * 65_536)
        except BlockingIOError:
            return sent


def held_by_the_reader(connection: socket.socket) -> int:
    """Bytes that have reached the client's own buffer."""
    client, own = (f":{each[1]:04X}" for each in (connection.getpeername(), connection.getsockname()))
    with open("/proc/net/tcp") as table:
        for row in map(str.split, table.readlines()[1:]):
            if row[1].endswith(client) and row[2].endswith(own):
                return int(row[4].partition(":")[2], 16)
    raise AssertionError("there is no such connection")


def test_an_address_that_is_taken_is_said() -> None:
    with listening_socket("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened on"):
            listening_socket("127.0.0.1", port)
