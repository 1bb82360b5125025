"""A cluster of OpenSearch at the level of its protocol, in this process.

It answers the requests that ``spaniel.index.remote.opensearch`` sends, and refuses everything
else, so that a request of another shape is noticed. Scores are Lucene's BM25 by brute force,
over lengths as Lucene rounds them, with the statistics of each shard unless
``dfs_query_then_fetch`` asks for those of all.
"""

import json
import math
import threading
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

MAX_CLAUSES = 1024


class Refused(Exception):
    """An answer of another status than 200."""

    def __init__(self, status, kind, reason):
        super().__init__(reason)
        self.status = status
        self.body = {"error": {"root_cause": [], "type": kind, "reason": reason}, "status": status}


def bad(reason):
    return Refused(400, "illegal_argument_exception", reason)


def only(found, *allowed):
    unknown = set(found) - set(allowed)
    if unknown:
        raise bad(f"unknown key {sorted(unknown)}")


class OpenSearchDouble:
    """Listens on the loopback device; ``url`` is its address.

    Attributes:
        fault: (method, path, params, body) -> (status, headers, answer) in place of an answer,
            or None.
        spoil: (method, path, answer) -> another answer of status 200.
        authorization: header that a request must have.
    """

    def __init__(self):
        self.indexes = {}
        self.requests = []
        self.fault = self.spoil = self.authorization = None
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer in two packets waits for the first one's receipt

            def handle_any(self):
                owner.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def stop(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def serve(self, handler):
        data = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        parts = urlsplit(handler.path)
        params = {name: values[0] for name, values in parse_qs(parts.query).items()}
        status, headers, answer = 200, {}, None
        with self._lock:
            self.requests.append((handler.command, parts.path, params, data))
            if self.fault is not None:
                answer = self.fault(handler.command, parts.path, params, data)
            if answer is not None:
                status, headers, answer = answer
            else:
                try:
                    answer = self.answer(handler, parts.path, params, data)
                    if self.spoil is not None:
                        answer = self.spoil(handler.command, parts.path, answer)
                except Refused as refused:
                    status, answer = refused.status, refused.body
        body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def answer(self, handler, path, params, data):
        if self.authorization not in (None, handler.headers.get("authorization")):
            raise Refused(401, "security_exception", "no such user")
        name, _, action = path.removeprefix("/").partition("/")
        kind = handler.headers["content-type"]
        if kind != ("application/x-ndjson" if action == "_bulk" else "application/json"):
            raise Refused(406, "content_type", f"Content-Type header [{kind}] is not supported")
        if (handler.command, action) == ("PUT", ""):
            if name in self.indexes:
                raise Refused(400, "resource_already_exists_exception", name)
            self.indexes[name] = Index(name, json.loads(data))
            return {"acknowledged": True, "shards_acknowledged": True, "index": name}
        index = self.indexes.get(name)
        if index is None:
            raise Refused(404, "index_not_found_exception", f"no such index [{name}]")
        match handler.command, action:
            case "DELETE", "":
                del self.indexes[name]
                return {"acknowledged": True}
            case "GET", "_mapping":
                return {name: {"mappings": index.mappings}}
            case "PUT", "_mapping":
                return index.put_mapping(json.loads(data))
            case "PUT", "_settings":
                return index.put_settings(json.loads(data))
            case "POST", "_bulk":
                return index.bulk(data)
            case "POST", "_refresh":
                return {"_shards": index.refresh()}
            case "POST", "_count":
                return index.count(json.loads(data))
            case "POST", "_search":
                return index.search(json.loads(data), params)
        raise bad(f"{handler.command} {path}")


class Index:
    """Rows of one index over its shards."""

    def __init__(self, name, body):
        only(body, "settings", "mappings")
        self.name = name
        self.settings = body["settings"]["index"]
        self.mappings = body["mappings"]
        analysis = self.settings["analysis"]
        analyzer = analysis["analyzer"]["terms"]
        assert analyzer == {"type": "custom", "tokenizer": "whitespace", "filter": ["gaps"]}
        self.gaps = set(analysis["filter"]["gaps"]["stopwords"])
        self.similarity = self.settings["similarity"]["bm25"]
        self.num_shards = self.settings["number_of_shards"]
        self.rows = {}
        self.refresh()

    def refresh(self):
        self.visible = [[] for _ in range(self.num_shards)]
        for row in self.rows.values():
            self.visible[zlib.crc32(row["_id"].encode()) % self.num_shards].append(row)
        self.scorer = Scorer(self, list(self.rows.values()))
        return self.shards()

    def shards(self):
        return {"total": self.num_shards, "successful": self.num_shards, "skipped": 0, "failed": 0}

    def put_mapping(self, body):
        only(body, "_meta")
        self.mappings["_meta"] = body["_meta"]
        return {"acknowledged": True}

    def put_settings(self, body):
        only(body["index"], "number_of_replicas")
        self.settings |= body["index"]
        return {"acknowledged": True}

    # -- writing -----------------------------------------------------------------------------

    def bulk(self, data):
        assert data.endswith(b"\n")
        lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
        items = [
            {"create": self.create(action["create"]["_id"], fields)}
            for action, fields in zip(lines[::2], lines[1::2], strict=True)
        ]
        return {"errors": any("error" in i["create"] for i in items), "items": items}

    def create(self, row_id, fields):
        if row_id in self.rows:
            return {"_id": row_id, "status": 409, "error": {"reason": "document already exists"}}
        if len(row_id.encode()) > 512 or set(fields) - set(self.mappings["properties"]):
            return {"_id": row_id, "status": 400, "error": {"reason": "strict mapping"}}
        row = {"_id": row_id}
        for name, mapping in self.mappings["properties"].items():
            value = fields[name]
            if mapping["type"] == "text":
                row[name] = dict(self.analyzed(value))
                row[name, "tokens"] = Counter(row[name].values())
            elif mapping["type"] == "keyword":
                if any(len(text.encode()) > 32766 for text in value):
                    return {"_id": row_id, "status": 400, "error": {"reason": "immense term"}}
                row[name] = set(value)
            else:
                row[name] = int(value)
        self.rows[row_id] = row
        return {"_id": row_id, "status": 201}

    def analyzed(self, text):
        tokens = enumerate(text.split())
        return [(position, token) for position, token in tokens if token not in self.gaps]

    # -- searching ---------------------------------------------------------------------------

    def count(self, body):
        only(body, "query")
        scores = (self.scorer.score(body["query"], row) for row in self.scorer.rows)
        found = sum(score is not None for score in scores)
        return {"count": found, "_shards": self.shards()}

    def search(self, body, params):
        only(params, "search_type", "allow_partial_search_results")
        keys = ("query", "sort", "size", "collapse", "_source", "track_total_hits", "timeout")
        only(body, *keys)
        if body["size"] > self.settings["max_result_window"]:
            raise bad("Result window is too large")
        if count_clauses(body["query"]) > MAX_CLAUSES:
            raise bad("Query contains too many nested clauses")
        assert body["timeout"].endswith("ms")
        is_global = params.get("search_type") == "dfs_query_then_fetch"
        hits = []
        for rows in self.visible:
            scorer = self.scorer if is_global else Scorer(self, rows)
            scored = ((row, scorer.score(body["query"], row)) for row in rows)
            hits += [self.hit(row, s, body["sort"]) for row, s in scored if s is not None]
        for by in reversed(range(len(body["sort"]))):
            ((_, order),) = body["sort"][by].items()
            hits.sort(key=lambda hit: hit["sort"][by], reverse=order == "desc")
        if "collapse" in body:
            assert body["collapse"] == {"field": "row"}
            best = {}
            for hit in hits:
                best.setdefault(hit["row"], hit)
            hits = list(best.values())
        shown = [{k: v for k, v in hit.items() if k != "row"} for hit in hits[: body["size"]]]
        return {
            "took": 1,
            "timed_out": False,
            "_shards": self.shards(),
            "hits": {"max_score": None, "hits": shown},
        }

    def hit(self, row, score, sort):
        by = [score if "_score" in part else row[next(iter(part))] for part in sort]
        return {
            "_index": self.name,
            "_id": row["_id"],
            "_score": None,
            "sort": by,
            "row": row["row"],
        }


class Scorer:
    """Scores rows by the statistics of ``rows``."""

    def __init__(self, index, rows):
        self.index, self.rows = index, rows
        self.lengths = {}
        for name, mapping in index.mappings["properties"].items():
            if mapping["type"] == "text":
                filled = [len(row[name]) for row in rows if row[name]]
                self.lengths[name] = (len(filled), sum(filled) / len(filled) if filled else 0.0)
        self.frequencies = {
            name: Counter(token for row in rows for token in row[name, "tokens"])
            for name in self.lengths
        }

    def score(self, clause, row):
        """None where the row does not match."""
        ((kind, body),) = clause.items()
        return getattr(self, f"_{kind}")(body, row)

    def _match_all(self, body, row):
        return 1.0

    def _bool(self, body, row):
        only(body, "must", "filter", "should", "minimum_should_match")
        total = 0.0
        for clause in body.get("must", []):
            score = self.score(clause, row)
            if score is None:
                return None
            total += score
        if any(self.score(clause, row) is None for clause in body.get("filter", [])):
            return None
        should = [s for c in body.get("should", []) if (s := self.score(c, row)) is not None]
        if len(should) < body.get("minimum_should_match", 0):
            return None
        return total + sum(should)

    def _term(self, body, row):
        ((field, value),) = body.items()
        only(value, "value")
        if field in self.lengths:
            return self._bm25(field, [(0, value["value"])], row)
        return 1.0 if value["value"] in row[field] else None

    def _match_phrase(self, body, row):
        ((field, value),) = body.items()
        only(value, "query")
        return self._bm25(field, self.index.analyzed(value["query"]), row)

    def _range(self, body, row):
        ((field, value),) = body.items()
        only(value, "gt")
        return 1.0 if row[field] > value["gt"] else None

    def _bm25(self, field, phrase, row):
        tokens = row[field, "tokens"]
        if not all(token in tokens for _, token in phrase):
            return None
        at, first = row[field], phrase[0][0]
        count = tokens[phrase[0][1]]
        if len(phrase) > 1:
            count = sum(all(at.get(p + q - first) == t for q, t in phrase) for p in at)
        if not count:
            return None
        k1, b = self.index.similarity["k1"], self.index.similarity["b"]
        number, mean = self.lengths[field]
        frequencies = self.frequencies[field]
        idf = sum(
            math.log1p((number - frequencies[t] + 0.5) / (frequencies[t] + 0.5)) for _, t in phrase
        )
        length = rounded(len(row[field]))
        return idf * count / (count + k1 * (1 - b + b * length / mean))


def rounded(length):
    """A length as Lucene stores it: exact below 40, then to four significant bits."""
    if length < 24:
        return length
    shift = max(0, (length - 24).bit_length() - 4)
    return 24 + (((length - 24) >> shift) << shift)


def count_clauses(clause):
    ((kind, body),) = clause.items()
    if kind == "bool":
        parts = [*body.get("must", []), *body.get("filter", []), *body.get("should", [])]
        return sum(map(count_clauses, parts))
    if kind == "match_phrase":
        return len(next(iter(body.values()))["query"].split())
    return 1
