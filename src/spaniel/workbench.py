"""What the learning stages share, opened when first needed: questions, engines, model, sampler."""

import random
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spaniel.config import VllmConfig
from spaniel.corpus.prepare import load_questions
from spaniel.env.episode import Environment
from spaniel.errors import ConfigError
from spaniel.index.build import open_index
from spaniel.index.dense import DenseEngine, open_dense
from spaniel.index.engine import SearchEngine
from spaniel.index.fusion import FusedEngine
from spaniel.index.lexical import LexicalEngine
from spaniel.index.rerank import RerankedEngine, Reranker
from spaniel.index.vectors import build_vectors
from spaniel.policy.base import Policy
from spaniel.progress import say
from spaniel.questions.load import select
from spaniel.questions.split import Split, load_split
from spaniel.renderer import Renderer
from spaniel.rollout import Runner, seed_of
from spaniel.run import Run
from spaniel.types import Question

if TYPE_CHECKING:
    from spaniel.index.live.engine import LiveEngine


class Workbench:
    """What the learning stages share, opened when first needed: questions, engine, model."""

    def __init__(self, run: Run) -> None:
        self.run, self.recipe = run, run.recipe

    @cached_property
    def split(self) -> Split:
        """The split file."""
        self.run.outputs("split")
        return load_split(self.run.path("questions", "split.json"))

    @cached_property
    def questions(self) -> dict[str, Question]:
        """qid -> question, labelled ones."""
        questions, _ = load_questions(self.run.path("corpus"))
        return {q.qid: q for q in questions}

    @cached_property
    def train_questions(self) -> list[Question]:
        """The questions one may learn from."""
        return select(self.questions, self.split.train, where=self.split_path)

    @cached_property
    def test_questions(self) -> list[Question]:
        """The held-out questions."""
        return select(self.questions, self.split.test, where=self.split_path)

    @property
    def split_path(self) -> str:
        """For messages."""
        return str(self.run.path("questions", "split.json"))

    def sample(self, questions: Sequence[Question], num: int | None, what: str) -> list[Question]:
        """At most ``num`` questions, drawn by the recipe's seed: source order may be by hops."""
        if num is None or num >= len(questions):
            return list(questions)
        rng = random.Random(seed_of(self.recipe.seed, "sample", what))
        return rng.sample(list(questions), num)

    @cached_property
    def lexical(self) -> LexicalEngine:
        """The embedded three-view engine; the scores of bm25s are made where they are missing."""
        self.run.outputs("index")
        directory, cfg = self.run.path("index", "lexical"), self.recipe.index
        snippet_words = self.recipe.env.snippet_words
        if cfg.backend == "tantivy":
            return open_index(directory, cfg, snippet_words=snippet_words)
        from spaniel.index.bm25s_build import build_bm25s
        from spaniel.index.bm25s_views import open_bm25s

        build_bm25s(directory, cfg)
        return open_bm25s(directory, cfg, snippet_words=snippet_words)

    @cached_property
    def dense(self) -> DenseEngine:
        """The vector engine over the same documents; texts are encoded once."""
        cfg = self.recipe.index
        build_vectors(self.run.path("index", "lexical"), cfg)
        return open_dense(self.run.path("index", "lexical"), cfg, lexical=self.lexical)

    @cached_property
    def hybrid(self) -> FusedEngine:
        """Both, fused by reciprocal rank."""
        return FusedEngine([self.lexical, self.dense])

    @cached_property
    def http(self) -> SearchEngine:
        """An index that another process serves."""
        from spaniel.index.remote.http import HttpEngine

        if self.recipe.index.http is None:
            raise ConfigError("index.engine is http: set index.http.url")
        return HttpEngine(self.recipe.index.http)

    @cached_property
    def sphinx(self) -> LexicalEngine:
        """The three views on a cluster; texts and snippets from here."""
        from spaniel.index.remote.sphinx import SphinxViews

        cfg = self.recipe.index.sphinx
        if cfg is None:
            raise ConfigError("index.engine is sphinx: set index.sphinx")
        self.run.outputs("index")
        return open_index(
            self.run.path("index", "lexical"),
            self.recipe.index,
            snippet_words=self.recipe.env.snippet_words,
            views=lambda analyzer, content: SphinxViews(cfg, analyzer, content=content),
        )

    @cached_property
    def opensearch(self) -> LexicalEngine:
        """The three views on a cluster; texts and snippets from here."""
        from spaniel.index.remote.opensearch import OpenSearchViews

        cfg = self.recipe.index.opensearch
        if cfg is None:
            raise ConfigError("index.engine is opensearch: set index.opensearch")
        self.run.outputs("index")
        return open_index(
            self.run.path("index", "lexical"),
            self.recipe.index,
            snippet_words=self.recipe.env.snippet_words,
            views=lambda analyzer, content: OpenSearchViews(cfg, analyzer, content=content),
        )

    @cached_property
    def live(self) -> "LiveEngine":
        """The web, through a search API; needs no index."""
        from spaniel.index.live.engine import LiveEngine

        if self.recipe.index.live is None:
            raise ConfigError("set index.live: the web-search API to ask")
        return LiveEngine(self.recipe.index.live)

    @property
    def first_stage(self) -> SearchEngine:
        """The engine of ``index.engine``, before any reranker."""
        engine: SearchEngine = getattr(self, self.recipe.index.engine)
        return engine

    @cached_property
    def reranker(self) -> Reranker:
        """What ``index.rerank`` names."""
        cfg = self.recipe.index
        if cfg.rerank is None:
            raise ConfigError("set index.rerank: the cross-encoder")
        if cfg.rerank == "late-interaction":
            from spaniel.index.late_interaction import LateInteraction

            if cfg.engine != "dense":
                raise ConfigError(
                    "index.rerank = late-interaction adds to the similarity of vectors: it needs "
                    f"index.engine = dense, got {cfg.engine}"
                )
            return LateInteraction(max_tokens=cfg.max_rerank_tokens)
        from spaniel.index.cross_encoder import CrossEncoderReranker

        return CrossEncoderReranker(cfg.rerank, max_tokens=cfg.max_rerank_tokens)

    @cached_property
    def engine(self) -> SearchEngine:
        """The engine that the policy's ``search`` asks: found, then put in order by the
        cross-encoder and by the language model, where they are set."""
        cfg, engine = self.recipe.index, self.first_stage
        if cfg.rerank is not None:
            engine = RerankedEngine(engine, self.reranker, cfg.rerank_candidates)
        if cfg.llm_rerank is not None:
            from spaniel.index.llm_rerank import LlmReranker

            llm = LlmReranker(cfg.llm_rerank)
            engine = RerankedEngine(engine, llm, candidates=cfg.llm_rerank.candidates)
        return engine

    @cached_property
    def environment(self) -> Environment:
        """The three-tool environment over the engine."""
        return Environment(self.engine, self.recipe.env)

    @cached_property
    def _model_and_tokenizer(self) -> tuple[Any, Any]:
        from spaniel.policy.load import load_policy_model, unfamiliar_settings

        unfamiliar = unfamiliar_settings(self.recipe.policy, self.recipe.env)
        if unfamiliar:
            say(
                f"[env] is not what spaniel-tiny was trained with; it knows {', '.join(unfamiliar)}"
            )
        return load_policy_model(self.recipe.policy, seed=seed_of(self.recipe.seed, "model"))

    @property
    def model(self) -> Any:
        """The trained module; the sampler shares it."""
        return self._model_and_tokenizer[0]

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self._model_and_tokenizer[1]

    @cached_property
    def renderer(self) -> Renderer:
        """Messages to the model's token ids."""
        from spaniel.policy.load import end_ids
        from spaniel.renderer import ChatRenderer

        renderer = ChatRenderer(
            self.tokenizer,
            enable_thinking=self.recipe.policy.enable_thinking,
            tool_responses=self.recipe.env.dialect == "hermes",
            stop_ids=end_ids(self.model),
        )
        for note in renderer.notes:
            say(f"renderer: {note}")
        return renderer

    @cached_property
    def policy(self) -> Any:
        """The sampler: vLLM servers, or in this process over the model (or a copy of it)."""
        if self.recipe.policy.vllm is not None:
            return self._vllm(self.recipe.policy.vllm)
        from spaniel.policy.torch_engine import TorchEngine

        return TorchEngine(
            self.sampler_model,
            stop_ids=sorted(self.renderer.stop_ids),
            decode=self.renderer.decode,
            max_live_episodes=self.recipe.policy.max_live_episodes,
            note_routes=self.recipe.policy.replay_routing,
        )

    def _vllm(self, cfg: VllmConfig) -> Any:
        from spaniel.policy.load import TINY_FOLDER

        try:
            from spaniel.policy.vllm.policy import VllmPolicy, starts_on_cpu
        except ImportError:
            raise ConfigError("policy.vllm needs httpx: pip install 'spaniel[vllm]'") from None

        from spaniel.policy.vllm.weights import save_for_vllm
        from spaniel.routing import Routers

        policy, env = self.recipe.policy, self.recipe.env
        if cfg.max_model_tokens is None:
            # The budget may be full before a turn that the server still has to take.
            cfg = cfg.model_copy(update={"max_model_tokens": env.max_tokens + 1})
        note_routes = policy.replay_routing and len(Routers(self.model)) > 0
        if note_routes and not cfg.urls and next(self.model.parameters()).device.type == "cpu":
            raise ConfigError(
                "policy.replay_routing must be false: vLLM on a CPU does not tell which experts "
                "tokens went through; sample in this process, without policy.vllm, to replay them"
            )
        source = str(TINY_FOLDER) if policy.model == "spaniel-tiny" else policy.model
        if starts_on_cpu(cfg) and policy.lora is None:
            # All weights will be replaced: from a folder of the same kind.
            source = str(self.run.path("vllm", "model"))
            save_for_vllm(self.model, Path(source), on_cpu=True)
            self.tokenizer.save_pretrained(source)
        return VllmPolicy(
            source,
            policy,
            cfg,
            decode=self.renderer.decode,
            stop_ids=sorted(self.renderer.stop_ids),
            directory=self.run.path("vllm"),
            note_routes=note_routes,
        )

    @cached_property
    def sampler_model(self) -> Any:
        """The module that samples: the trainer's own, or a copy of it where it samples while the
        trainer works; for merged adapters a plain one."""
        lora = self.recipe.policy.lora
        merged = lora is not None and lora.merge
        if not merged and not self.recipe.rl.overlaps:
            return self.model
        from spaniel.policy.load import load_policy_model

        own = self.recipe.policy.model_copy(update={"lora": None} if merged else {})
        return load_policy_model(own, seed=seed_of(self.recipe.seed, "model"))[0]

    def sampler_weights(self) -> Any:
        """What ``policy.load`` takes: a folder for vLLM, nothing when the module is shared."""
        if self.recipe.policy.vllm is not None:
            return self._exported_weights(self.recipe.policy.vllm)
        if self.sampler_model is self.model:
            return None
        from spaniel.policy.weights import copyable_weights, merged_weights

        lora = self.recipe.policy.lora
        merged = lora is not None and lora.merge
        return merged_weights(self.model) if merged else copyable_weights(self.model)

    def _exported_weights(self, cfg: VllmConfig) -> Path:
        """The model's weights in a folder of their own; the last two are kept, since requests under
        way may still use the one before."""
        from spaniel.policy.vllm.policy import starts_on_cpu
        from spaniel.policy.vllm.weights import save_for_vllm

        folder = self.run.path("vllm", "weights")
        numbers = sorted(int(old.name) for old in folder.glob("[0-9]*"))
        for number in numbers[:-1]:
            shutil.rmtree(folder / str(number))
        target = folder / str(numbers[-1] + 1 if numbers else 0)
        save_for_vllm(self.model, target, on_cpu=starts_on_cpu(cfg))
        return target

    def second_model(self) -> Any:
        """Another module like ``model``, with the weights of the recipe's start."""
        from spaniel.policy.load import load_policy_model

        return load_policy_model(self.recipe.policy, seed=seed_of(self.recipe.seed, "model"))[0]

    def load_stage_weights(self, stage: str) -> None:
        """Put a finished stage's weights into the model."""
        from spaniel.policy.export import load_policy_weights

        load_policy_weights(self.model, self.run.path(stage, "policy"))

    def runner(self, policy: Policy, renderer: Renderer, *, temperature: float) -> Runner:
        """Rollouts of a policy in this environment, scored."""
        return Runner(
            policy,
            renderer,
            self.environment,
            self.recipe.reward,
            temperature=temperature,
            max_failed_frac=self.recipe.rl.max_failed_frac,
        )

    def settings(self, *names: str) -> dict[str, Any]:
        """Recipe sections as stage inputs; the seed always belongs to them."""
        dump = self.recipe.model_dump(mode="json")
        dump["index"] = self.recipe.index.search_settings()
        return {"seed": dump["seed"], **{name: dump[name] for name in names}}

    @property
    def concurrency(self) -> int:
        """Trajectories under way at once."""
        return self.recipe.policy.max_live_episodes
