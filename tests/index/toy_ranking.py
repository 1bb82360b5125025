"""A ranking task that a tiny model can learn: each letter belongs to one number."""

import torch
import transformers
from tests.index.conftest import document

from spaniel.types import Hit, Question

LETTERS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
NUMBERS = ["one", "two", "three", "four", "five", "six"]
PAIRS = dict(zip(LETTERS, NUMBERS, strict=True))
QUESTIONS = [Question(qid=x, text=x, targets=(PAIRS[x],)) for x in LETTERS]
DOCUMENTS = [document(number, f"about {number}") for number in NUMBERS]


class Everything:
    """Finds all documents, alike and in docid order."""

    fingerprint = "everything"
    waits = False

    def __init__(self, documents=DOCUMENTS):
        self.documents = {d.docid: d for d in documents}

    def search(self, query, k):
        docids = sorted(self.documents)[:k]
        return [Hit(docid=d, score=0.5, rank=r) for r, d in enumerate(docids, start=1)]

    def search_batch(self, queries, k):
        return [self.search(query, k) for query in queries]

    def read(self, docid):
        return self.documents[docid]

    def read_batch(self, docids):
        return [self.read(docid) for docid in docids]


def tiny_bert(path, *, num_labels=None, dropout=0.1):
    """A random two-layer BERT that knows the words of the task; with a head for scores if asked."""
    path.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *NUMBERS, "about"]
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model_class = transformers.BertModel
    if num_labels is not None:
        config.num_labels = num_labels
        model_class = transformers.BertForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model_class(config).save_pretrained(path)
    transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    return str(path)


def first_places(engine):
    """How many letters find their number first."""
    return sum(engine.search(letter, 1)[0].docid == PAIRS[letter] for letter in LETTERS)
