"""An index's documents -> the cluster that a recipe names."""

from collections.abc import Iterable

from spaniel.config import IndexConfig
from spaniel.errors import ConfigError
from spaniel.types import Document


def load_cluster(
    documents: Iterable[Document], count: int, cfg: IndexConfig, content: str
) -> tuple[int, int]:
    """Fill the cluster of ``index.engine``, or the only one there is, with documents in row order.

    Returns:
        (documents, passages) that it holds.

    Raises:
        ConfigError: the recipe names no cluster, or two.
        ToolError: the cluster does not answer.
    """
    named = [name for name in ("sphinx", "opensearch") if getattr(cfg, name) is not None]
    if cfg.engine in named:
        named = [cfg.engine]
    if len(named) != 1:
        raise ConfigError(
            "set index.sphinx or index.opensearch: the cluster to load"
            if not named
            else "index.sphinx and index.opensearch are set: say with index.engine which to load"
        )
    if cfg.opensearch is not None and named == ["opensearch"]:
        from spaniel.index.remote.opensearch_load import load_opensearch

        return load_opensearch(documents, count, cfg.opensearch, cfg, content)
    from spaniel.index.remote.sphinx import load_sphinx

    assert cfg.sphinx is not None
    return load_sphinx(documents, count, cfg.sphinx, cfg, content)
