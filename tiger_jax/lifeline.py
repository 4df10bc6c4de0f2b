"""Which processes of a run are alive, told by the TCP connection that each keeps to process 0.

The kernel closes a dead process's connection at once, however it died, so that a lost process is
noticed within a second; a host that vanished is noticed by TCP keepalive. Why not XLA's own
heartbeats alone: until they time out, and with a collective pending for ever, nothing happens, and
then XLA aborts with a C++ stack. Their callback for Python fails in jaxlib 0.10.2 (std::bad_cast).
They stay on as a second net, for a process that lives but is frozen.

    process 0   listens, one connection from each of the others
    process i   one connection to process 0
    message     kind (1 byte), process (4 bytes): HELLO i, DONE i, LOST i
"""

import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping

from tiger_jax.cluster import Processes
from tiger_jax.errors import UserError

EXIT_LOST = 3
"""Exit code of a process that ends because another one is gone."""
VANISHED_SECONDS = 30
"""After which a host that answers nothing counts as gone: 10 s of silence, 4 probes each 5 s."""
LINGER_SECONDS = 2.0
"""How long process 0 stays after bad news: XLA aborts the others the moment that it is gone."""
NEWS_SECONDS = 1.0
"""How long a process that fails waits for the news that another one failed first."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_MESSAGE = struct.Struct("!cI")
_HELLO, _DONE, _LOST = b"H", b"D", b"L"


class Lifeline:
    """Watches the other processes in a thread; ends this one when any of them is gone."""

    def __init__(self, processes: Processes, peers: Mapping[int, socket.socket]):
        self._index, self._count = processes.index, processes.count
        self._peers = dict(peers)
        self._done: set[int] = set()
        self._failing = False
        for connection in self._peers.values():
            _keep_alive(connection)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    @classmethod
    def meet(cls, processes: Processes, seconds: float) -> "Lifeline":
        """Connect all processes, whichever starts first.

        Raises:
            UserError: some did not come within `seconds`, or process 0 cannot listen.
        """
        wait = _accept if processes.index == 0 else _connect
        return cls(processes, wait(processes, time.monotonic() + seconds, seconds))

    def done(self) -> None:
        """Tell the others that this process ends well: its closed connection is no loss."""
        self._tell(_DONE, self._index)

    def failed(self) -> None:
        """Tell the others that this process ends badly, and let them end before process 0 does.

        Waits first: where another process died, this one may see a broken collective before the
        news, and the news are the better message.
        """
        time.sleep(NEWS_SECONDS)
        self._failing = True
        self._tell(_LOST, self._index)
        if self._index == 0:
            time.sleep(LINGER_SECONDS)

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        for process, connection in self._peers.items():
            selector.register(connection, selectors.EVENT_READ, process)
        while selector.get_map():
            for key, _ in selector.select():
                try:
                    kind, about = _receive(key.fileobj)
                except OSError:
                    selector.unregister(key.fileobj)
                    if key.data not in self._done:
                        self._lost(key.data)
                    continue
                if kind == _LOST:
                    if about == key.data:  # said so itself: a bad config fails here too, by now,
                        time.sleep(LINGER_SECONDS / 4)  # and this process's own error says more
                    self._lost(about)
                self._done.add(about)

    def _lost(self, process: int) -> None:
        """Say it, tell the others, end: the main thread may wait for the lost one for ever."""
        if self._failing:  # the others follow this process, which has said why
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        text = (
            f"error: process {process} of {self._count} is gone (its own log says why), so "
            f"process {self._index} ends too; the same command on all of them goes on from the "
            "newest checkpoint\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())  # not sys.stderr: the main thread may hold its lock
        self._tell(_LOST, process)
        if self._index == 0 and len(self._peers) > 1:
            time.sleep(LINGER_SECONDS)
        os._exit(EXIT_LOST)

    def _tell(self, kind: bytes, about: int) -> None:
        for connection in self._peers.values():
            with contextlib.suppress(OSError):
                connection.sendall(_MESSAGE.pack(kind, about))


def _accept(processes: Processes, deadline: float, seconds: float) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with _listen(processes.lifeline_port) as server:
        while len(peers) < processes.count - 1:
            try:
                server.settimeout(max(deadline - time.monotonic(), 0.01))
                connection, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, processes.count)) - set(peers))
                raise UserError(
                    f"processes: expected {processes.count} of them within {seconds:.0f} s, "
                    f"process {', '.join(map(str, missing))} did not come"
                ) from None
            connection.settimeout(5)
            try:
                kind, process = _receive(connection)
            except OSError:
                kind, process = b"", 0
            if kind == _HELLO and 0 < process < processes.count and process not in peers:
                peers[process] = connection
            else:
                connection.close()  # a stranger: port scanners exist
    return peers


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 may be off; a taken port fails below too
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise UserError(f"port {port}: expected it to be free on the host of process 0, got "
                        f"{error.strerror}") from error  # fmt: skip


def _connect(processes: Processes, deadline: float, seconds: float) -> dict[int, socket.socket]:
    place = (processes.host, processes.lifeline_port)
    while True:
        try:
            connection = socket.create_connection(place, timeout=5)
            connection.sendall(_MESSAGE.pack(_HELLO, processes.index))
            return {0: connection}
        except OSError as error:  # process 0, or the name of its host, may only be on its way
            if time.monotonic() > deadline:
                raise UserError(
                    f"process {processes.index}: expected process 0 at {place[0]}:{place[1]} "
                    f"within {seconds:.0f} s, got {error}"
                ) from error
        time.sleep(0.5)


def _receive(connection: socket.socket) -> tuple[bytes, int]:
    """One message. Raises OSError if the connection is closed or broken."""
    data = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
    if len(data) < _MESSAGE.size:
        raise ConnectionResetError("closed")
    return _MESSAGE.unpack(data)


def _keep_alive(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # macOS names them otherwise
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
