"""Documents, index and questions: the stages before any model."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spaniel.config import IndexConfig
from spaniel.corpus.encoder import hash_of_files
from spaniel.corpus.prepare import load_corpus, load_questions, prepare_corpus
from spaniel.index.build import build_index
from spaniel.index.update import Change, update_index
from spaniel.progress import say
from spaniel.questions.split import make_split, write_split
from spaniel.rollout import seed_of
from spaniel.run import Run
from spaniel.types import Document


def make_corpus(run: Run) -> dict[str, Any]:
    """Read and clean the documents and their labels."""
    cfg = run.recipe.corpus
    return run.stage(
        "corpus",
        settings={"corpus": cfg.model_dump(mode="json")},
        needs=(),
        make=lambda: prepare_corpus(cfg, run.path("corpus")),
    )


def make_index(run: Run) -> dict[str, Any]:
    """Build the three-view index; vectors are made when an engine first needs them."""
    cfg = run.recipe.index

    def make() -> dict[str, Any]:
        documents = load_corpus(run.path("corpus"))
        documents_id = run.outputs("corpus")["hash"]
        directory = run.path("index", "lexical")
        manifest = build_index(documents, directory, cfg, documents_id=documents_id)
        if cfg.backend == "bm25s":
            from spaniel.index.bm25s_build import build_bm25s

            build_bm25s(directory, cfg)
        return index_outputs(manifest)

    settings = {"index": cfg.search_settings(), **_models_of(cfg)}
    return run.stage("index", settings=settings, needs=("corpus",), make=make)


def _models_of(cfg: IndexConfig) -> dict[str, Any]:
    """Hashes of the encoder and the reranker that lie in directories: they can be trained anew."""
    named = {"encoder": cfg.encoder, "rerank": cfg.rerank}
    paths = {name: Path(path) for name, path in named.items() if path and Path(path).is_dir()}
    return {"models": {n: hash_of_files(p) for n, p in paths.items()}} if paths else {}


def index_outputs(manifest: dict[str, Any]) -> dict[str, Any]:
    """What depends on an index depends on its content: its files have other names each time."""
    return {name: value for name, value in manifest.items() if name != "files"}


def change_index(
    run: Run, *, add: Iterable[Document] = (), delete: Sequence[str] = (), replace: bool = False
) -> Change:
    """Add documents to the finished index, or take some out; what was made with it is out of
    date then."""
    run.outputs("index")
    change = update_index(
        run.path("index", "lexical"), run.recipe.index, add=add, delete=delete, replace=replace
    )
    run.amend("index", index_outputs(change.manifest))
    gone = set(delete)
    questions, _ = load_questions(run.path("corpus"))
    lost = sum(1 for question in questions if gone.intersection(question.targets))
    if lost:
        say(f"warning: {lost:,} questions ask for a document that was deleted")
    return change


def make_questions(run: Run) -> dict[str, Any]:
    """Split the questions so that no target document is on both sides."""
    cfg = run.recipe.questions

    def make() -> dict[str, Any]:
        questions, given = load_questions(run.path("corpus"))
        split = make_split(questions, given, cfg, seed_of(run.recipe.seed, "split"))
        write_split(run.path("questions", "split.json"), split)
        return {"hash": split.hash, "train": len(split.train), "test": len(split.test)}

    settings = {"questions": cfg.model_dump(mode="json"), "seed": run.recipe.seed}
    return run.stage("split", settings=settings, needs=("corpus",), make=make)
