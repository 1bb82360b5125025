"""A web server on the loopback device: search APIs and pages, which may misbehave."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Reply:
    body: bytes | str = b""
    status: int = 200
    headers: dict = field(default_factory=dict)
    length: int | None = None
    """Content-Length, when it shall not be the body's."""
    wait_s: float = 0.0
    """Before the answer."""
    drip_s: float = 0.0
    """Between the parts of the body, 1000 bytes each."""


def page(body, *, kind="text/html; charset=utf-8", **more):
    return Reply(body, headers={"content-type": kind}, **more)


def redirect(to, status=302):
    return Reply(status=status, headers={"location": to})


def answer(value, status=200, **headers):
    return Reply(json.dumps(value), status, {"content-type": "application/json"} | headers)


class Web:
    """``routes`` maps a path to a reply, a list of replies (the last one for ever), or a function
    of the request. Other paths are 404."""

    def __init__(self):
        self.routes = {}
        self.requests = []
        """(path, headers in lower case, parameters, JSON body, time)."""
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                owner._serve(self)

            do_POST = do_GET

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, address):
                pass  # a client that hangs up is part of some tests

        self._http = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def asked(self, path):
        return [r for r in self.requests if r[0] == path]

    def _serve(self, handler):
        parts = urlsplit(handler.path)
        length = int(handler.headers.get("content-length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        headers = {k.lower(): v for k, v in handler.headers.items()}
        params = {k: v[0] for k, v in parse_qs(parts.query).items()}
        request = (parts.path, headers, params, body, time.monotonic())
        with self._lock:
            self.requests.append(request)
            reply = self.routes.get(parts.path, Reply(status=404))
            if isinstance(reply, list):
                reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if callable(reply):
            reply = reply(request)
        time.sleep(reply.wait_s)
        self._send(handler, reply)

    def _send(self, handler, reply):
        content = reply.body.encode() if isinstance(reply.body, str) else reply.body
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        length = len(content) if reply.length is None else reply.length
        handler.send_header("content-length", str(length))
        handler.end_headers()
        for start in range(0, len(content), 1000):
            handler.wfile.write(content[start : start + 1000])
            if reply.drip_s:
                handler.wfile.flush()
                time.sleep(reply.drip_s)

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
