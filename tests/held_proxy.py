"""Stands between an HTTP client and a broker, and holds back one request or its answer: a test acts at that moment."""

import contextlib
import socket
import threading
from types import TracebackType


class HeldProxy:
    """Listens on a free port. `held` is set once a request that begins with `marker` is held back.

    With `holds_answer`, the broker gets that request, and its answer is held back.
    """

    def __init__(self, port: int, marker: bytes, holds_answer: bool = False) -> None:
        self.held = threading.Event()
        self._broker = port
        self._marker = marker
        self._holds_answer = holds_answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> "HeldProxy":
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._broker))
            self._sockets += [client, broker]
            is_answer_held = threading.Event()
            for work in (self._send, self._answer):
                self._threads.append(threading.Thread(target=work, args=(client, broker, is_answer_held)))
                self._threads[-1].start()

    def _send(self, client: socket.socket, broker: socket.socket, is_answer_held: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._marker in data.partition(b"\r\n")[0]:
                    if not self._holds_answer:
                        self.held.set()
                        return
                    is_answer_held.set()
                broker.sendall(data)
            broker.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, broker: socket.socket, is_answer_held: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := broker.recv(65536):
                if is_answer_held.is_set():
                    self.held.set()
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
