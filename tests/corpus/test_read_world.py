"""The generated wiki as a source."""

from spaniel.config import CorpusConfig, WorldSource
from spaniel.corpus.read import read_corpus


def test_a_world_is_a_source_with_labels_inside_its_corpus() -> None:
    source = WorldSource(pages=300, seed=3, questions=20, min_hops=2, max_hops=3)
    labelled = read_corpus(CorpusConfig(source=source))
    assert len(labelled.documents) == 300
    assert len(labelled.questions) == 20
    assert labelled.report.dropped == {}
    assert labelled.report.max_recall == 1.0
    assert {q.hops for q in labelled.questions} == {2, 3}
