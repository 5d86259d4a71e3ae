"""Bytes to a server and the bytes that it answers, for what no HTTP library would send."""

from __future__ import annotations

import socket

from tests.api.server import PATIENCE


def connect(url: str, seconds: float = PATIENCE) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), seconds)


def answer_to(url: str, data: bytes, seconds: float = PATIENCE) -> bytes:
    """All that comes until the server closes, or falls silent for so long."""
    with connect(url, seconds) as client:
        client.sendall(data)
        return rest_of(client)


def rest_of(client: socket.socket) -> bytes:
    answer = b""
    try:
        while block := client.recv(65536):
            answer += block
    except (TimeoutError, ConnectionError):
        pass
    return answer
