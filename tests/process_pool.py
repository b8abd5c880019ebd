"""The `headrace` command in processes that have its modules: forked by one that read them, instead of begun anew.

Reading modules takes longer than most of what a broker is started for in a test: 0.4 s of processor time until it
serves and 0.2 s more when it answers with Arrow for the first time, hundreds of times in a test run. Everything else
is as in a process of its own, which it is: what it is asked for, its environment, its files, its end. Tests about the
process itself, about what it has loaded or how much memory it takes, start one anew.
"""

import array
import atexit
import contextlib
import gc
import importlib
import io
import os
import pickle
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO, NoReturn

import headrace
from headrace import app, cli

_REQUEST_BYTES = 1 << 20
_APART = (
    "headrace.spark",
    "headrace.demo",
    "headrace.cli.demo",
    "headrace.cli.pipeline",
)
"""Modules that only their users read: Spark is large, and few commands are about it."""
_OF_OTHERS = ("argon2", "pyarrow", "rich.markdown", "uvicorn.protocols.http.httptools_impl", "uvloop", "websockets")
"""Other modules that are read only when they are needed."""
_POLL_SECONDS = 0.01


class Child:
    """A process that runs `headrace`; the same methods as `subprocess.Popen`."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self.returncode: int | None = None
        os.set_blocking(status, False)

    def poll(self) -> int | None:
        """Its exit code, or None as long as it runs."""
        if self.returncode is None:
            try:
                said = os.read(self._status, 16)
            except BlockingIOError:
                return None
            os.close(self._status)
            self.returncode = int(said)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"headrace, process {self.pid}", timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stdout: BinaryIO,
    stderr: BinaryIO,
    stdin: BinaryIO | None = None,
    directory: Path | None = None,
) -> Child:
    """Run the command with these arguments, in a directory, with open files for what it writes and reads."""
    channel = _forker()
    reader, writer = os.pipe()
    request = pickle.dumps((list(arguments), dict(environment), directory or Path.cwd()))
    with Path(os.devnull).open("rb") as nothing:
        streams = (stdin or nothing, stdout, stderr)
        files = array.array("i", [*(file.fileno() for file in streams), writer])
        channel.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    os.close(writer)
    return Child(int(channel.recv(16)), reader)


@cache
def _forker() -> socket.socket:
    """This process's own forker, from now until this process ends: the socket to ask it at."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.process_pool", str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )

    def close() -> None:
        ours.close()
        process.wait()

    atexit.register(close)
    assert ours.recv(16) == b"ready", "the forker did not become ready"
    return ours


# -- in the forker


def _serve(channel: socket.socket) -> bool:
    """Fork whenever asked to. Returns whether this is a new process, or else the forker itself, which is to end."""
    running = selectors.DefaultSelector()
    running.register(channel, selectors.EVENT_READ)
    while True:
        for key, _ in running.select():
            if key.fileobj is not channel:
                _bury(running, key)
                continue
            request, files = _receive(channel)
            if not request:
                return False
            *streams, status = files
            pid = os.fork()
            if pid == 0:
                channel.close()
                running.close()
                os.close(status)
                _move_in(request, streams)
                return True
            for file in streams:
                os.close(file)
            running.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
            channel.send(b"%d" % pid)


def _receive(channel: socket.socket) -> tuple[bytes, "array.array[int]"]:
    files = array.array("i")
    request, about, _, _ = channel.recvmsg(_REQUEST_BYTES, socket.CMSG_SPACE(4 * files.itemsize))
    for _, _, data in about:
        files.frombytes(data)
    return request, files


def _bury(running: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """Tell how a process ended to whoever asked for it, if they still want to know."""
    pid, status = key.data
    _, how = os.waitpid(pid, 0)
    running.unregister(key.fileobj)
    os.close(key.fd)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d" % os.waitstatus_to_exitcode(how))
    os.close(status)


def _move_in(request: bytes, streams: Sequence[int]) -> None:
    """Have what a process has that is begun with this request."""
    arguments, environment, directory = pickle.loads(request)
    for standard, file in enumerate(streams):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["headrace", *arguments]


class _Replaced(BaseException):
    """This process would go on as another program."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = arguments


def _run() -> None:
    """The command; and where it would replace its process by the broker's, the broker, which is loaded as well."""
    execute = os.execv

    def replace(_: str, arguments: Sequence[str]) -> NoReturn:
        os.execv = execute  # what comes later is meant
        raise _Replaced(arguments)

    os.execv = replace  # type: ignore[assignment]
    try:
        cli.main()
    except _Replaced as replaced:
        safe, option, module, *rest = replaced.arguments[1:]
    assert (safe, option, module) == ("-P", "-m", "headrace.app")
    sys.argv = [module, *rest]
    app._main()


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends it
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.startswith((*_APART, "headrace.__main__")):
            importlib.import_module(module.name)
    for name in _OF_OTHERS:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.cli(["config", "check", os.devnull], standalone_mode=False)  # reads what it takes to read arguments
    gc.collect()
    gc.freeze()  # so that nobody who looks through all objects has to copy them
    channel.send(b"ready")
    if _serve(channel):
        _run()


if __name__ == "__main__":
    _main()
