"""One index over HTTP for many trainers (``spaniel index serve``).

    POST /search    {"queries": [str], "k": int}     -> {"fingerprint", "results": [[hit]]}
    POST /read      {"docids": [str], "texts": bool} -> {"fingerprint", "documents": [document]}
    POST /retrieve  {"queries": [str], "topk": int, "return_scores": bool}   as Search-R1 asks
    GET  /health    -> {"status", "fingerprint", "version"}
    GET  /metrics   -> counters in the text format of Prometheus

Searches run on a few threads. Behind them waits a bounded line; whoever finds it full gets 429
and a ``Retry-After``, so that a burst costs its sender time and never the server its memory. An
engine that fails answers 500 with the cause: never an empty list.
"""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spaniel import __version__
from spaniel.errors import ConfigError, QueryError
from spaniel.index.engine import SearchEngine, headings
from spaniel.store import to_plain
from spaniel.types import Document

MAX_BODY_BYTES = 4 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")
T = TypeVar("T")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchBody(_Body):
    """``POST /search``."""

    queries: Annotated[list[str], Field(max_length=1024)]
    k: int = Field(10, ge=1, le=1000)


class ReadBody(_Body):
    """``POST /read``."""

    docids: Annotated[list[str], Field(max_length=1024)]
    texts: bool = True
    """Without them only title, URL, links and metadata come."""


class RetrieveBody(_Body):
    """``POST /retrieve``, the shape of Search-R1."""

    queries: Annotated[list[str], Field(max_length=1024)]
    topk: int | None = Field(None, ge=1, le=1000)
    return_scores: bool = False


class Busy(Exception):
    """The line is full; come back in ``retry_after_s``."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many requests are waiting: try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class Desk:
    """Runs calls on ``num_threads`` threads; at most ``max_waiting`` wait for one.

    Raises:
        Busy: from ``run``, when the line is full.
    """

    def __init__(self, num_threads: int, max_waiting: int) -> None:
        self.num_threads, self.max_waiting = num_threads, max_waiting
        self.inside = 0
        """Calls at work or waiting."""
        self.seconds = 0.0
        """Moving mean of a call."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="search")

    async def run(self, call: Callable[[], T]) -> T:
        """The result of ``call`` from one of the threads."""
        if self.inside >= self.num_threads + self.max_waiting:
            wait = self.seconds * self.inside / self.num_threads
            raise Busy(max(1, math.ceil(wait)))
        self.inside += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._timed, call)
        finally:
            self.inside -= 1

    def close(self) -> None:
        """Wait for what is at work."""
        self._threads.shutdown(wait=True)

    def _timed(self, call: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return call()
        finally:
            took = time.perf_counter() - started
            self.seconds = took if not self.seconds else 0.95 * self.seconds + 0.05 * took


@dataclass(frozen=True)
class _Failure(Exception):
    status: int
    kind: str
    message: str
    retry_after_s: int = 0


class SearchServer:
    """The ASGI application over one engine; ``app`` is what a server runs.

    Args:
        engine: what is searched.
        num_threads: searches at work at once.
        max_waiting: requests that may wait for a thread.
        allow_remote: answer clients and ``Host`` headers other than this machine's.
    """

    def __init__(
        self,
        engine: SearchEngine,
        *,
        num_threads: int = 4,
        max_waiting: int = 256,
        allow_remote: bool = False,
    ) -> None:
        if num_threads < 1 or max_waiting < 0:
            raise ConfigError(
                f"threads must be >= 1 and waiting >= 0, got {num_threads} and {max_waiting}"
            )
        self.engine, self.allow_remote = engine, allow_remote
        self.fingerprint = engine.fingerprint
        self.desk = Desk(num_threads, max_waiting)
        self.answers: Counter[tuple[str, int]] = Counter()
        """(path, status) -> answers."""
        self.num_queries = self.num_reads = 0
        self.started = time.time()
        routes: list[tuple[str, str, Callable[[Request], Any]]] = [
            ("/search", "POST", self._search),
            ("/read", "POST", self._read),
            ("/retrieve", "POST", self._retrieve),
            ("/health", "GET", self._health),
            ("/metrics", "GET", self._metrics),
        ]
        self.app = Starlette(
            routes=[Route(path, self._guarded(path, f), methods=[m]) for path, m, f in routes],
        )

    # -- the endpoints -----------------------------------------------------------------------

    async def _search(self, request: Request) -> dict[str, Any]:
        body = await _parse(request, SearchBody)
        found = await self.desk.run(lambda: self.engine.search_batch(body.queries, body.k))
        self.num_queries += len(body.queries)
        return {"fingerprint": self.fingerprint, "results": to_plain(found)}

    async def _read(self, request: Request) -> dict[str, Any]:
        body = await _parse(request, ReadBody)
        documents = await self.desk.run(lambda: self._documents(body))
        self.num_reads += len(body.docids)
        return {"fingerprint": self.fingerprint, "documents": to_plain(documents)}

    async def _retrieve(self, request: Request) -> dict[str, Any]:
        body = await _parse(request, RetrieveBody)
        k = body.topk or 3

        def rows() -> list[list[Any]]:
            found = self.engine.search_batch(body.queries, k)
            return [
                [
                    {"document": _contents(document), "score": hit.score}
                    if body.return_scores
                    else _contents(document)
                    for hit, document in zip(
                        hits, self.engine.read_batch([h.docid for h in hits]), strict=True
                    )
                ]
                for hits in found
            ]

        result = await self.desk.run(rows)
        self.num_queries += len(body.queries)
        return {"result": result}

    async def _health(self, request: Request) -> dict[str, Any]:
        return {
            "status": "ok",
            "fingerprint": self.fingerprint,
            "version": __version__,
        }

    async def _metrics(self, request: Request) -> str:
        lines = [
            "# TYPE spaniel_answers_total counter",
            *(
                f'spaniel_answers_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self.answers.items())
            ),
            "# TYPE spaniel_queries_total counter",
            f"spaniel_queries_total {self.num_queries}",
            "# TYPE spaniel_reads_total counter",
            f"spaniel_reads_total {self.num_reads}",
            "# TYPE spaniel_requests_inside gauge",
            f"spaniel_requests_inside {self.desk.inside}",
            "# TYPE spaniel_call_seconds gauge",
            f"spaniel_call_seconds {self.desk.seconds:.6f}",
            "# TYPE spaniel_uptime_seconds gauge",
            f"spaniel_uptime_seconds {time.time() - self.started:.1f}",
        ]
        return "\n".join(lines) + "\n"

    # -- around them -------------------------------------------------------------------------

    def _guarded(self, path: str, handler: Callable[[Request], Any]) -> Callable[..., Any]:
        async def endpoint(request: Request) -> Response:
            try:
                self._check_caller(request)
                response = _json(200, await handler(request))
            except _Failure as failure:
                response = _failed(failure)
            except Busy as busy:
                response = _failed(_Failure(429, "busy", str(busy), busy.retry_after_s))
            except QueryError as error:
                response = _failed(_Failure(400, "query", str(error)))
            except Exception as error:
                # Whatever broke inside the engine is the client's to hear of, as a failure.
                cause = f"{type(error).__name__}: {error}"
                response = _failed(_Failure(500, "engine", cause))
            self.answers[path, response.status_code] += 1
            return response

        return endpoint

    def _check_caller(self, request: Request) -> None:
        if self.allow_remote:
            return
        client = request.client.host if request.client else ""
        if client and client not in LOOPBACK and not client.startswith("127."):
            raise _Failure(403, "host", f"{client} is not this machine; see --allow-remote")
        # A page in a browser can reach the loopback device through a name of its own.
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if host.strip("[]") not in LOOPBACK:
            raise _Failure(403, "host", f"host {host!r} is not this machine; see --allow-remote")

    def _documents(self, body: ReadBody) -> list[Document]:
        try:
            if body.texts:
                return self.engine.read_batch(body.docids)
            return [replace(d, text="") for d in headings(self.engine, body.docids)]
        except KeyError as error:
            unknown = str(error.args[0]) if error.args else ""
            raise _Failure(404, "docid", unknown) from None


def serve(
    server: SearchServer,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str, Callable[[], None]], None],
) -> None:
    """Answer until Ctrl-C or SIGTERM; what is at work is finished first.

    Args:
        port: 0 takes a free one.
        on_ready: gets, once connections are accepted, the address and a function that stops.

    Raises:
        ConfigError: the address cannot be bound, or is not loopback and ``allow_remote`` is off.
    """
    import socket

    import uvicorn

    if host not in LOOPBACK and not server.allow_remote:
        raise ConfigError(
            f"--host {host} can be reached from other machines, which may then read every "
            "document: add --allow-remote if that is wanted"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}"

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            on_ready(address, self.stop)

        def stop(self) -> None:
            self.should_exit = True

    config = uvicorn.Config(
        server.app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        backlog=2048,
        timeout_graceful_shutdown=30,
    )
    try:
        Announced(config).run(sockets=[listening])
    finally:
        server.desk.close()


async def _parse(request: Request, model: type[Any]) -> Any:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise _Failure(413, "body", f"the body is longer than {MAX_BODY_BYTES:,} bytes")
    try:
        # Python's own reader: a lone surrogate, as "\\ud800", is text to the engine, too.
        return model.model_validate(json.loads(bytes(body)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Failure(400, "body", f"{where}: {first['msg']}") from None
    except ValueError as error:
        raise _Failure(400, "body", f"the body must be JSON: {error}") from None


def _json(status: int, content: Any) -> Response:
    if isinstance(content, str):
        return Response(content, status, media_type="text/plain; version=0.0.4")
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def _failed(failure: _Failure) -> Response:
    response = _json(failure.status, {"error": failure.message, "kind": failure.kind})
    if failure.retry_after_s:
        response.headers["retry-after"] = str(failure.retry_after_s)
    return response


def _contents(document: Document) -> dict[str, str]:
    return {"id": document.docid, "contents": f'"{document.title}"\n{document.text}'}
