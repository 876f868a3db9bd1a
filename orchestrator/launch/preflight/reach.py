"""Do the other hosts reach the first one on the rendezvous port: a script like ``probe``, piped to the hosts' Python.

The first host listens for a moment, the others connect to each of its addresses. A token tells the real listener from another
program, and from another host with the same address (every host with Docker has its own 172.17.0.1).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import Any

MARK = "ORCHESTRATOR-PROBE "


def main(text: str) -> None:
    """Listen or connect, as the request (JSON) says, and print the answer."""
    request = json.loads(text)
    signal.alarm(int(request["seconds"]) + 5)
    if request["task"] == "listen":
        listen(request)
    else:
        answer(connect(request))
    os._exit(0)


def answer(value: dict[str, Any]) -> None:
    """Print one answer."""
    print(MARK + json.dumps(value), flush=True)


def listen(request: dict[str, Any]) -> None:
    """Hold the port (0 = any) and give each caller the token, until the time is up or nobody reads our output any more."""
    deadline = time.monotonic() + float(request["seconds"])
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", request["port"]))
            server.listen(512)
        except OSError as problem:
            answer({"port": None, "reason": problem.strerror})
            return
        server.settimeout(0.5)
        while time.monotonic() < deadline:
            # said again and again: once our caller has gone this fails, and the port is free
            answer({"port": server.getsockname()[1]})
            try:
                connection, _ = server.accept()
            except OSError:
                continue
            with connection:
                connection.settimeout(1.0)
                try:
                    connection.sendall(request["token"].encode())
                    connection.recv(1)
                except OSError:
                    continue


def connect(request: dict[str, Any]) -> dict[str, str | None]:
    """What each address said: ``None`` where the listener answered, else why not."""
    said: dict[str, str | None] = dict.fromkeys(request["addresses"], "no answer")

    def call(address: str) -> None:
        try:
            with socket.create_connection((address, request["port"]), timeout=request["connect_seconds"]) as connection:
                token = connection.recv(len(request["token"])).decode(errors="replace")
            said[address] = None if token == request["token"] else "another program answers there"
        except OSError as problem:
            said[address] = str(problem.strerror or problem)

    threads = [threading.Thread(target=call, args=(address,), daemon=True) for address in said]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(request["connect_seconds"] + 1.0)
    return said
