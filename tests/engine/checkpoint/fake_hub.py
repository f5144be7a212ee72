"""A Hugging Face hub on localhost, with one model in it, that answers, refuses, or says nothing at all."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """files: of the one model. status, error_code: what every call is refused with; silent: no call is answered."""

    repo_id: str
    files: Mapping[str, bytes]
    status: int = 200
    error_code: str = ""
    silent: bool = False
    served: list[str] = field(default_factory=list)  # the files that were asked for
    quiet: threading.Event = field(default_factory=threading.Event)


@contextmanager
def running(hub: FakeHub) -> Iterator[str]:
    """The URL of the hub."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if hub.silent:
                hub.quiet.wait(30)
                return
            path = self.path.partition("?")[0]
            if hub.status != 200:
                self.answer(hub.status, b"{}", {"X-Error-Code": hub.error_code, "X-Error-Message": "refused"})
            elif path.startswith(f"/api/models/{hub.repo_id}/tree/"):
                entries = [
                    {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                    for n, c in hub.files.items()
                ]
                self.answer(200, json.dumps(entries).encode())
            elif path in (f"/api/models/{hub.repo_id}", f"/api/models/{hub.repo_id}/revision/main"):
                siblings = [{"rfilename": name} for name in hub.files]
                model = {"id": hub.repo_id, "modelId": hub.repo_id, "sha": SHA, "siblings": siblings}
                self.answer(200, json.dumps(model).encode())
            elif (name := path.removeprefix(f"/{hub.repo_id}/resolve/{SHA}/")) not in hub.files:
                self.answer(404, b"{}")  # the client also asks for things of its own
            else:
                hub.served.append(name)
                etag = f'"{hashlib.sha1(hub.files[name]).hexdigest()}"'
                self.answer(200, hub.files[name], {"ETag": etag, "X-Repo-Commit": SHA})

        def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests look at what was served."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        hub.quiet.set()
        server.shutdown()
        server.server_close()
