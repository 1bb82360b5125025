"""Documents and questions: sources and hygiene."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from spaniel.config.stage import StageConfig


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
    kinds: tuple[Literal["chain", "intersection", "comparison"], ...] = Field(
        ("chain", "intersection", "comparison"), min_length=1
    )
    """What questions are: one fact behind another; what two descriptions have in common; which of
    two things is more."""
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
