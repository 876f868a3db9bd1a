"""A W&B server on the loopback that behaves badly, or just well enough to take a run."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0" * 40
HANGS = "hangs"
WORKS = "works"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_query = self.path == "/graphql"
        behaviour = self.server.queries if is_query else self.server.uploads
        if behaviour == HANGS:
            time.sleep(600)
        content: dict[str, Any] = {}
        if is_query:
            query = json.loads(body)
            name, variables = re.search(r"(?:query|mutation)\s+(\w+)", query["query"]).group(1), query.get("variables") or {}  # type: ignore[union-attr]
            self.server.asked.append((name, variables))
            data = (
                {"createRunFiles": None}
                if self.server.kills and name == "CreateRunFiles"
                else _data(name, variables, f"http://127.0.0.1:{self.server.server_port}")
            )
            content = {"data": data} if data else {"errors": [{"message": f"{name} is not known here"}]}
        else:
            self.server.uploaded.append(body.decode(errors="replace"))
        encoded = json.dumps(content).encode()
        self.send_response(200 if behaviour == WORKS else int(behaviour))
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """``queries`` and ``uploads`` say what it does with each: ``works``, ``hangs``, or a status.

    ``kills``: it gives an answer that W&B's own service crashes at.
    """

    daemon_threads = True

    def __init__(self, *, queries: str, uploads: str, kills: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.queries, self.uploads, self.kills = queries, uploads, kills
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.uploaded: list[str] = []

    def handle_error(self, *_: object) -> None:
        """Say nothing: W&B hangs up when it has waited long enough."""

    @property
    def environment(self) -> dict[str, str]:
        """What points W&B here."""
        return account(self.server_port)


def account(port: int) -> dict[str, str]:
    """An account at a server on this machine."""
    return {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": KEY}


@contextmanager
def refusing() -> Iterator[dict[str, str]]:
    """An account at a server that is not there, nor anybody else at its port for the time of the context."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        yield account(place.getsockname()[1])


@contextmanager
def served(*, queries: str = WORKS, uploads: str = WORKS, kills: bool = False) -> Iterator[Server]:
    """A server for the time of the context."""
    server = Server(queries=queries, uploads=uploads, kills=kills)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _data(name: str, variables: dict[str, Any], address: str) -> dict[str, Any] | None:
    if name == "RunResumeStatus":
        return {"model": None}
    if name == "UpsertBucket":
        project = {"id": "project", "name": variables.get("project"), "entity": {"id": "entity", "name": "someone"}}
        bucket = {"id": "bucket", "name": variables["name"], "displayName": "name", "project": project, "historyLineCount": 0}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}
    if name == "Viewer":
        return {"viewer": {"id": "viewer", "entity": "someone", "username": "someone", "flags": "{}", "teams": {"edges": []}}}
    if name == "CreateRunFiles":
        files = [{"name": file, "uploadUrl": f"{address}/upload/{file}"} for file in variables["files"]]
        return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}
    if name == "ArtifactType":
        return {"project": {"artifact": None}}
    return None
