"""As much of a server of Weights & Biases as its client needs to upload runs: what it uploads can be read here."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HISTORY = "wandb-history.jsonl"
_PROJECT = {"id": "1", "name": "test", "entity": {"id": "1", "name": "me"}}


class WandbServer:
    """Keeps the lines of every run where the client wants them, so that one may overwrite another."""

    def __init__(self) -> None:
        self.url = ""
        self.runs: dict[str, dict[int, Any]] = {}

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """The metrics of a run in the order of their lines."""
        lines = self.runs[run_id]
        return [lines[number] for number in sorted(lines)]

    def graphql(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request for the state of a run, or to change it."""
        name = variables.get("name", "")
        if operation == "RunResumeStatus":
            return {"model": {**_PROJECT, "bucket": self._bucket(name) if name in self.runs else None}}
        if operation == "UpsertBucket":
            inserted = name not in self.runs
            self.runs.setdefault(name, {})
            return {"upsertBucket": {"bucket": self._bucket(name), "inserted": inserted}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
        if operation == "Viewer":
            return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        return {}

    def stream(self, run_id: str, files: dict[str, Any]) -> None:
        """Lines of files, each file's from its offset on."""
        part = files.get(_HISTORY, {"offset": 0, "content": []})
        for number, line in enumerate(part["content"], part["offset"]):
            self.runs[run_id][number] = json.loads(line)

    def _bucket(self, name: str) -> dict[str, Any]:
        history = self.history(name)
        return {
            "id": name, "name": name, "displayName": name, "description": "", "config": "{}", "sweepName": "",
            "project": _PROJECT, "historyLineCount": len(history), "eventsLineCount": 0, "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(line) for line in history[-1:]]), "eventsTail": "[]",
            "summaryMetrics": json.dumps(history[-1] if history else {}), "tags": [], "notes": "",
            "wandbConfig": '{"t": 1}',  # without it the client takes the run for one that never began
        }  # fmt: skip


@contextmanager
def wandb_server() -> Generator[WandbServer]:
    """A server on a free port of this machine's loopback address."""
    state = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = json.loads(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            if self.path == "/graphql":
                return self._answer({"data": state.graphql(request["operationName"], request.get("variables", {}))})
            state.stream(self.path.split("/")[-2], request.get("files", {}))
            return self._answer({})

        def _answer(self, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests read their own output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
