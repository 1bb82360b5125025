"""``spaniel index ...``: documents -> hits."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spaniel.cli.common import WITH_OVERRIDES, Force, RecipePath, load, run_stages
from spaniel.config import Recipe
from spaniel.errors import ArtifactError, ConfigError, DataError
from spaniel.progress import say

index_app = typer.Typer(help="Documents -> hits.", no_args_is_help=True)


@index_app.command("build", context_settings=WITH_OVERRIDES)
def index_build(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Build the three-view index over the corpus, by tantivy or bm25s (index.backend)."""
    run_stages(recipe, ctx.args, force, "make_corpus", "make_index")


@index_app.command("add", context_settings=WITH_OVERRIDES)
def index_add(
    ctx: typer.Context,
    recipe: RecipePath,
    source: Annotated[Path, typer.Argument(help="JSON lines, or a folder of texts.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="A document takes the place of its namesake.")
    ] = False,
) -> None:
    """Add documents to the finished index, without building it again."""
    from spaniel.corpus.prepare import read_documents

    _change_index(load(recipe, ctx.args), add=read_documents(source), replace=replace)


@index_app.command("delete", context_settings=WITH_OVERRIDES)
def index_delete(
    ctx: typer.Context,
    recipe: RecipePath,
    docid: Annotated[list[str] | None, typer.Option(help="Take this one out; repeat.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with a docid a line.")] = None,
) -> None:
    """Take documents out of the finished index, without building it again."""
    docids = list(docid or [])
    if file is not None:
        try:
            docids += file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None
    docids = [name for name in dict.fromkeys(docids) if name]
    if not docids:
        raise ConfigError("name what to delete: --docid ID, or --file with a docid a line")
    _change_index(load(recipe, ctx.args), delete=docids)


def _change_index(recipe: Recipe, **changes: Any) -> None:
    from spaniel.run import Run
    from spaniel.stages import change_index

    run = Run(recipe)
    with run.locked():
        change = change_index(run, **changes)
    print(
        f"{change.num_added:,} documents added, {change.num_replaced:,} replaced, "
        f"{change.num_deleted:,} deleted: {change.manifest['num_documents']:,} in the index"
    )


@index_app.command("search", context_settings=WITH_OVERRIDES)
def index_search(
    ctx: typer.Context,
    recipe: RecipePath,
    query: Annotated[str, typer.Argument(help="Keywords, exact phrases in quotes.")],
    k: Annotated[int, typer.Option(min=1, help="Hits to show.")] = 5,
) -> None:
    """Search the index as the policy does."""
    from spaniel.index.engine import headings
    from spaniel.index.query import parse_query
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    bench = Workbench(Run(load(recipe, ctx.args)))
    hits = bench.engine.search(query, k)
    for hit, document in zip(hits, headings(bench.engine, [h.docid for h in hits]), strict=True):
        print(f"{hit.rank:>3}  {hit.score:.4f}  {document.title}  [{hit.docid}]")
        print(f"     {' '.join(_marked(hit.snippet, query, bench.recipe.index.language).split())}")
    if not hits:
        say("no documents match")
    for note in parse_query(query).notes:
        say(f"note: {note}")


@index_app.command("read", context_settings=WITH_OVERRIDES)
def index_read(
    ctx: typer.Context,
    recipe: RecipePath,
    docid: Annotated[str, typer.Argument(help="As `spaniel index search` shows it.")],
) -> None:
    """Print one document, whole."""
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    engine = Workbench(Run(load(recipe, ctx.args))).engine
    try:
        document = engine.read(docid)
    except KeyError:
        raise DataError(f"no document has the docid {docid!r}") from None
    heading = "  ".join(part for part in (document.title, document.url) if part)
    print(f"{heading}\n\n{document.text}" if heading else document.text)


def _marked(snippet: str, query: str, language: str) -> str:
    """An excerpt with the query's words in bold, on a terminal."""
    if not sys.stdout.isatty():
        return snippet
    from spaniel.index.analysis import Analyzer
    from spaniel.index.query import parse_query
    from spaniel.index.snippet import highlights

    parts, end = [], 0
    for start, stop in highlights(Analyzer(language), parse_query(query), snippet):
        parts += [snippet[end:start], typer.style(snippet[start:stop], bold=True)]
        end = stop
    return "".join([*parts, snippet[end:]])


@index_app.command("verify", context_settings=WITH_OVERRIDES)
def index_verify(ctx: typer.Context, recipe: RecipePath) -> None:
    """Read every byte of the index and compare it with what was built."""
    from spaniel.index.build import verify_index
    from spaniel.run import Run

    run = Run(load(recipe, ctx.args))
    run.outputs("index")
    found = verify_index(run.path("index", "lexical"), run.recipe.index)
    print(
        f"{found['documents']:,} documents, {found['passages']:,} passages: {found['files']} files "
        f"of {found['bytes']:,} bytes are as they were built"
    )
    if run.recipe.index.backend == "bm25s":
        from spaniel.index.bm25s_build import verify_bm25s

        size = verify_bm25s(run.path("index", "lexical"), run.recipe.index)
        print(f"bm25s: {size:,} bytes are as they were built")


@index_app.command("tune", context_settings=WITH_OVERRIDES)
def index_tune(
    ctx: typer.Context,
    recipe: RecipePath,
    questions: Annotated[int, typer.Option(min=1, help="At most so many to fit.")] = 500,
    k: Annotated[int, typer.Option(min=1, help="nDCG over the first k documents.")] = 10,
) -> None:
    """Fit the fusion of the three views to the training questions, and say what it gains."""
    from spaniel.eval.tune import tune_fusion
    from spaniel.run import Run
    from spaniel.store import write_json
    from spaniel.workbench import Workbench

    run = Run(load(recipe, ctx.args))
    bench = Workbench(run)
    tuning = tune_fusion(
        bench.lexical,
        bench.sample(bench.train_questions, questions, "tune"),
        bench.test_questions,
        run.recipe.index,
        k=k,
        seed=run.recipe.seed,
    )
    write_json(run.path("index", "tuning.json"), tuning.as_dict())
    for line in tuning.lines():
        print(line)


@index_app.command("record", context_settings=WITH_OVERRIDES)
def index_record(
    ctx: typer.Context,
    recipe: RecipePath,
    questions: Annotated[int, typer.Option(min=1, help="At most so many held-out ones.")] = 200,
    k: Annotated[int, typer.Option(min=1, max=20, help="Results to record of each.")] = 10,
) -> None:
    """Ask a web-search API (index.live) the held-out questions and keep what it finds.

    Writes index/live.jsonl in the run directory, for `spaniel index calibrate`. Results come out
    of the cache (index.live.cache) where it has them.
    """
    from spaniel.eval.calibrate import record_live
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    run = Run(load(recipe, ctx.args))
    bench = Workbench(run)
    live = bench.live
    asked = bench.sample(bench.test_questions, questions, "record")
    path = run.path("index", "live.jsonl")
    count = record_live(live, asked, k, path)
    say(f"{path}: {count:,} queries, {live.num_requests:,} requests sent")


@index_app.command("calibrate", context_settings=WITH_OVERRIDES)
def index_calibrate(
    ctx: typer.Context,
    recipe: RecipePath,
    recorded: Annotated[
        Path | None, typer.Option(help="JSON lines of live results; index/live.jsonl by default.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Local hits that count.")] = 10,
) -> None:
    """Compare the index with recorded results of a live search engine.

    Reports evidence recall@k against the evidence that the live engine found, and, with a model
    as judge (index.calibration.judge), whose excerpts are better, blind and in both orders. Needs
    neither network nor key but for the judge. Writes index/calibration.json in the run directory.
    """
    from spaniel.eval.calibrate import MADE_BY, calibrate
    from spaniel.run import Run
    from spaniel.store import write_json
    from spaniel.workbench import Workbench

    run = Run(load(recipe, ctx.args))
    cfg = run.recipe.index
    if cfg.engine == "live":
        raise ConfigError("calibrate a local engine: set index.engine to one, such as lexical")
    path = recorded or run.path("index", "live.jsonl")
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `{MADE_BY}` first, or give --recorded")
    engine = Workbench(run).engine
    found = calibrate(engine, path, cfg.calibration, k=k, seed=run.recipe.seed)
    write_json(run.path("index", "calibration.json"), found.as_dict())
    for line in found.lines():
        print(line)


@index_app.command("train-reranker", context_settings=WITH_OVERRIDES)
def index_train_reranker(ctx: typer.Context, recipe: RecipePath) -> None:
    """Train a cross-encoder on the training questions (index.train_reranker) for index.rerank."""
    _train_retriever(load(recipe, ctx.args), "reranker", "index.rerank")


@index_app.command("train-encoder", context_settings=WITH_OVERRIDES)
def index_train_encoder(ctx: typer.Context, recipe: RecipePath) -> None:
    """Fine-tune the encoder on the training questions (index.train_encoder) for index.encoder."""
    _train_retriever(load(recipe, ctx.args), "encoder", "index.encoder")


def _train_retriever(recipe: Recipe, kind: str, setting: str) -> None:
    from spaniel.corpus.extras import import_extra
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    import_extra("sentence_transformers", "dense")
    from spaniel.eval.train_retriever import train_encoder, train_reranker

    run = Run(recipe)
    with run.locked():
        train = {"reranker": train_reranker, "encoder": train_encoder}[kind]
        trained = train(Workbench(run))
    for gain in trained.gains:
        print(gain.line())
    print(f'use it with: {setting} = "{trained.directory}"')


@index_app.command("load", context_settings=WITH_OVERRIDES)
def index_load(ctx: typer.Context, recipe: RecipePath) -> None:
    """Load the index into a cluster: index.opensearch, or index.sphinx (SphinxQL)."""
    from spaniel.index.build import open_index
    from spaniel.index.remote.load import load_cluster
    from spaniel.run import Run

    run = Run(load(recipe, ctx.args))
    cfg = run.recipe.index
    run.outputs("index")
    engine = open_index(run.path("index", "lexical"), cfg)
    documents, passages = load_cluster(engine.texts, len(engine.texts), cfg, engine.content)
    say(f"the cluster holds {documents:,} documents and {passages:,} passages")


@index_app.command("serve", context_settings=WITH_OVERRIDES)
def index_serve(
    ctx: typer.Context,
    recipe: RecipePath,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    threads: Annotated[int, typer.Option(min=1, help="Searches at work at once.")] = 4,
    waiting: Annotated[int, typer.Option(min=0, help="Requests that may wait; then 429.")] = 256,
    allow_remote: Annotated[bool, typer.Option(help="Answer other machines, too.")] = False,
) -> None:
    """Serve the index over HTTP to many trainers."""
    from spaniel.index.server import SearchServer, serve
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    engine = Workbench(Run(load(recipe, ctx.args))).engine
    server = SearchServer(
        engine, num_threads=threads, max_waiting=waiting, allow_remote=allow_remote
    )
    serve(
        server,
        host=host,
        port=port,
        on_ready=lambda address, stop: say(f"serving {engine.fingerprint} at {address}"),
    )
