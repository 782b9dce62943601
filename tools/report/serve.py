"""The page over HTTP, on this machine only unless told otherwise; its data are read anew."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tools.report.page import page

LOOPBACK = ('127.0.0.1', 'localhost')
AGE = 2.0  # seconds for which data are not read anew


class Source:
    """The data of the page, read at most every ``AGE`` seconds.

    Args:
        read: Returns ``page_data``.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read, self._lock = read, threading.Lock()
        self._data: dict[str, Any] = {}
        self._at = float('-inf')

    def data(self) -> dict[str, Any]:
        """Return the data."""
        with self._lock:
            if time.monotonic() - self._at > AGE:
                self._data, self._at = self._read(), time.monotonic()
            return self._data


def tag_of(data: dict[str, Any]) -> str:
    """A short text that changes with the data, but not with the time at which they were read."""
    text = json.dumps({**data, 'made': 0})
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'


class Handler(BaseHTTPRequestHandler):
    """Answers / with the page and /data.json with its data."""

    server: Server

    def do_GET(self) -> None:
        """Answer one request."""
        if not self.server.answers(self.headers.get('Host') or ''):
            self.send_error(403, 'another host name')
            return
        path = self.path.partition('?')[0]
        if path not in ('/', '/data.json'):
            self.send_error(404)
            return
        data = self.server.source.data()
        if path == '/':
            self._send(page(data, live=True), 'text/html; charset=utf-8')
            return
        tag = tag_of(data)
        if self.headers.get('If-None-Match') == tag:
            self.send_response(304)
            self.end_headers()
            return
        content = json.dumps({**data, 'live': True}, allow_nan=False)
        self._send(content, 'application/json', tag)

    def _send(self, text: str, kind: str, tag: str = '') -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(content)))
        self.send_header('Cache-Control', 'no-store')
        if tag:
            self.send_header('ETag', tag)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """Serves a page.

    Args:
        host, port: Where to listen; port 0 for any free one.
        read: Returns ``page_data``.

    Raises:
        OSError: Where it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, read: Callable[[], dict[str, Any]]) -> None:
        super().__init__((host, port), Handler)
        self.source = Source(read)
        self.host = host

    def answers(self, name: str) -> bool:
        """Whether to answer a request to ``name``, with or without a port.

        On a loopback address only to its own names: a page of another site could make its name lead
        here (DNS rebinding), and read the runs.
        """
        host = name.rpartition(':')[0] or name
        return self.host not in LOOPBACK or host in LOOPBACK

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host, port = self.server_address[:2]
        return f'http://{host!s}:{port}/'
