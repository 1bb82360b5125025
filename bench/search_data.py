"""What the search benches search: labelled sets for quality, passages of any number for speed.

Labelled sets lie in one folder (``--data``):

    nfcorpus, scifact        beir/<name>.zip or beir/<name>/, as BEIR publishes them; test questions
    musique, 2wiki, hotpot   <name>/, BEIR layout; dev questions
    cranfield                cranfield/cran.all.1400.xml, cran.qry.xml, cranqrel.trec.txt

Passages for speed are the distinct paragraphs of musique, 2wiki and hotpot. Where more are wanted
than there are, the rest is resampled: as many sentences as some real passage has, each drawn from
all real ones, under a real title with one made-up word, so that the vocabulary goes on growing.
Resampled text is not independent text: common words are in more documents than they would be, so
it is a hard case for engines that skip low-scoring documents.
"""

import json
import random
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spaniel.config import BeirSource
from spaniel.corpus.beir import read_beir
from spaniel.corpus.qrels import read_qrels
from spaniel.corpus.records import Reading
from spaniel.errors import ConfigError
from spaniel.types import Document, Question

DATA = Path(__file__).parents[2] / "shared" / "data"
BEIR_SETS = ("nfcorpus", "scifact")
MULTI_HOP_SETS = ("musique", "2wiki", "hotpot")
SETS = (*BEIR_SETS, "cranfield", *MULTI_HOP_SETS)

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """Documents, and questions with graded labels."""

    name: str
    documents: list[Document]
    questions: dict[str, str]
    """qid -> text; those with at least one relevant document."""
    qrels: dict[str, dict[str, int]]
    """qid -> docid -> grade; relevant from 1."""
    num_labels_outside: int
    """Relevant labels of documents that the corpus does not hold. They count as missed."""
    train: list[Question]
    """Of a multi-hop set, its training questions; none of the others."""


def load_set(name: str, data: Path, work: Path) -> LabelledSet:
    """One labelled set; a zip is unpacked into ``work``.

    Raises:
        ConfigError: its files are not there.
    """
    train: list[Question] = []
    if name == "cranfield":
        documents, texts, qrels = _cranfield(data / "cranfield")
    elif name in BEIR_SETS:
        documents, texts, qrels = _beir(_beir_folder(name, data / "beir", work), "test")
    elif name in MULTI_HOP_SETS:
        documents, texts, qrels = _beir(data / name, "dev")
        source = BeirSource(path=data / name, train_split="train", test_split="train")
        train = [q for q in read_beir(source, Reading("stop")).questions if q.targets]
    else:
        raise ConfigError(f"--sets must be among {', '.join(SETS)}, got {name!r}")
    known = {d.docid for d in documents}
    relevant = [d for grades in qrels.values() for d, grade in grades.items() if grade >= 1]
    return LabelledSet(
        name=name,
        documents=documents,
        questions={
            q: t for q, t in texts.items() if any(g >= 1 for g in qrels.get(q, {}).values())
        },
        qrels=qrels,
        num_labels_outside=sum(docid not in known for docid in relevant),
        train=train,
    )


Parts = tuple[list[Document], dict[str, str], dict[str, dict[str, int]]]


def _beir(folder: Path, split: str) -> Parts:
    # Not the corpus stage: nothing is merged, and labels keep their grades.
    reading = Reading("stop")
    source = BeirSource(path=folder, train_split=split, test_split=split)
    found = read_beir(source, reading)
    qrels = read_qrels([folder / "qrels" / f"{split}.tsv"], reading).grades
    return found.documents, {q.qid: q.text for q in found.questions}, qrels


def _beir_folder(name: str, beir: Path, work: Path) -> Path:
    if (beir / name / "corpus.jsonl").exists():
        return beir / name
    if not (beir / f"{name}.zip").exists():
        raise ConfigError(
            f"{beir / name}.zip is missing: it is at https://github.com/beir-cellar/beir"
        )
    if not (work / name / "corpus.jsonl").exists():
        with zipfile.ZipFile(beir / f"{name}.zip") as file:
            file.extractall(work)
    return work / name


def _cranfield(folder: Path) -> Parts:
    """The texts repeat their titles, which are taken off; questions count from 1 in file order."""
    pages = (folder / "cran.all.1400.xml").read_text(encoding="utf-8", errors="replace")
    documents = []
    for page in re.findall(r"<doc>(.*?)</doc>", pages, re.DOTALL):
        fields = {
            tag: " ".join(body.split())
            for tag, body in re.findall(r"<(docno|title|text)>(.*?)</\1>", page, re.DOTALL)
        }
        title, text = fields.get("title", ""), fields.get("text", "")
        text = text.removeprefix(title).strip()
        documents.append(Document(docid=fields["docno"], title=title, text=text))
    asked = (folder / "cran.qry.xml").read_text(encoding="utf-8")
    # Their own numbers have gaps; the labels count questions instead.
    texts = [" ".join(t.split()) for t in re.findall(r"<title>(.*?)</title>", asked, re.DOTALL)]
    qrels = read_qrels([folder / "cranqrel.trec.txt"], Reading("stop")).grades
    return documents, {str(i): text for i, text in enumerate(texts, start=1)}, qrels


# --- passages for speed ---------------------------------------------------------------------


def real_passages(data: Path) -> list[Document]:
    """The distinct paragraphs of the multi-hop sets, numbered as docids."""
    found: dict[tuple[str, str], None] = {}
    for name in MULTI_HOP_SETS:
        path = data / name / "corpus.jsonl"
        if not path.exists():
            raise ConfigError(f"{path} is missing: --data must name the folder of {MULTI_HOP_SETS}")
        with path.open(encoding="utf-8") as file:
            for row in map(json.loads, file):
                found.setdefault((row.get("title", ""), " ".join(row["text"].split())))
    return [
        Document(docid=f"r{number:07d}", title=title, text=text)
        for number, (title, text) in enumerate(found)
    ]


def passages(size: int, real: Sequence[Document], seed: int = 1) -> Iterator[Document]:
    """``size`` documents: real ones in random order, then resampled ones."""
    rng = random.Random(seed)
    yield from rng.sample(real, min(size, len(real)))
    sentences = [_SENTENCE_END.split(d.text) for d in real]
    pool = [sentence for each in sentences for sentence in each]
    for number in range(size - len(real)):
        text = " ".join(rng.choices(pool, k=len(rng.choice(sentences))))
        title = f"{rng.choice(real).title} {_made_up(number)}".strip()
        yield Document(docid=f"s{number:07d}", title=title, text=text)


def _made_up(number: int) -> str:
    """A word that no text holds, another for each number."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    word = "x"
    while True:
        number, rest = divmod(number, len(syllables))
        word += syllables[rest]
        if not number:
            return f"{word}q"


def queries(number: int, documents: Sequence[Document], questions: Sequence[str]) -> list[str]:
    """What is asked: a third each of questions, of spans of 2-8 words of a text, and of title
    words with the rarest words of the text."""
    rng = random.Random(2)
    counts = Counter(w.lower() for d in documents for w in set(_WORD.findall(d.text)))
    asked = []
    for turn in range(number):
        document = rng.choice(documents)
        words = _WORD.findall(document.text)
        if turn % 3 == 0 and questions:
            asked.append(rng.choice(questions).replace('"', " "))
        elif turn % 3 == 1:
            length = rng.randint(2, 8)
            start = rng.randrange(max(1, len(words) - length))
            asked.append(" ".join(words[start : start + length]))
        else:
            rare = sorted(set(words), key=lambda w: (counts[w.lower()], w))[:10]
            chosen = rng.sample(rare, min(len(rare), rng.randint(1, 4)))
            asked.append(" ".join([*_WORD.findall(document.title)[:4], *chosen]))
    return [query for query in asked if query.strip()]


def all_questions(data: Path) -> list[str]:
    """The questions of the multi-hop sets."""
    found = []
    for name in MULTI_HOP_SETS:
        with (data / name / "queries.jsonl").open(encoding="utf-8") as file:
            found += [json.loads(line)["text"] for line in file]
    return found
