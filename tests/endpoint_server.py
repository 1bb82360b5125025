"""An OpenAI-compatible server on the loopback device, which may misbehave."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(content="found it", finish="stop", **message):
    return 200, json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "message": {"role": "assistant", "content": content, **message},
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
    )


class Server:
    """Gives the answers of a list in order, the last one for ever; or what ``reply`` says."""

    def __init__(self):
        self.answers = [answer()]
        self.reply = None
        """Request body -> (status, text), instead of ``answers``."""
        self.bodies = []
        self.release = threading.Event()
        self.release.set()
        self.open = self.most_open = 0
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                owner.serve(self)

            do_GET = do_POST

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def serve(self, handler):
        length = int(handler.headers.get("content-length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        with self._lock:
            self.bodies.append(body)
            if self.reply is not None:
                status, text = self.reply(body)
            else:
                status, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        self.release.wait(5)
        with self._lock:
            self.open -= 1
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("retry-after-ms", "1")
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text.encode())

    def close(self):
        self.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
