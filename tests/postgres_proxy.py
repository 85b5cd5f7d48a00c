"""A line to a server that a test can cut: bytes go through until then, later connections anew."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections from a port of its own to ``target`` on this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._hushed: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for end in (self._listening, *self._ends):
            end.close()

    def cut(self) -> None:
        """End every connection as it is; new ones are served."""
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hush(self) -> None:
        """Keep every connection open and let nothing through it any more; new ones are served."""
        self._hushed = list(self._ends)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self.accepted += 1
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._carry, args=(source, sink), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if sink not in self._hushed:
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
