"""A fictional wiki: invented entities, their pages, and questions with exact labels.

    world = generate_world(pages=1000, seed=1)
    documents = list(world.documents())
    questions = world.questions(600, seed=1)

Everything is a function of the two numbers: the same world comes back on every machine, and
another seed is another world with other names.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from spaniel.errors import ConfigError
from spaniel.types import Document, Question
from spaniel.world.entities import Entities, make_entities
from spaniel.world.facts import Facts
from spaniel.world.pages import write_page
from spaniel.world.questions import KIND_WEIGHTS, make_questions
from spaniel.world.schema import load_schema
from spaniel.world.wiring import make_facts

MIN_PAGES = 200


class World:
    """One generated wiki. Pages are written when they are asked for."""

    def __init__(self, entities: Entities, facts: Facts, *, name: str, seed: int) -> None:
        self.entities = entities
        self.facts = facts
        self.name = name
        self.seed = seed

    def __len__(self) -> int:
        return len(self.entities)

    @cached_property
    def entity_of(self) -> dict[str, int]:
        """Entity by docid."""
        return {docid: entity for entity, docid in enumerate(self.entities.docids)}

    def documents(self) -> Iterator[Document]:
        """All pages, in the order of their docids."""
        return (self.page(entity) for _, entity in sorted(self.entity_of.items()))

    def document(self, docid: str) -> Document:
        """One page. Raises ``KeyError`` when there is no such docid."""
        return self.page(self.entity_of[docid])

    def page(self, entity: int) -> Document:
        """The page of an entity."""
        return write_page(self.entities, self.facts, entity, self.seed, f"{self.name}.wiki")

    def questions(
        self,
        num: int,
        *,
        seed: int,
        min_hops: int = 2,
        max_hops: int = 5,
        kinds: Sequence[str] = tuple(KIND_WEIGHTS),
    ) -> list[Question]:
        """Questions with one answer each, evenly over the hop counts.

        ``hops`` is the number of targets: the pages that state the facts of
        ``metadata["decomposition"]``. No two questions have the same decomposition.

        Args:
            kinds: of ``chain``, ``intersection`` and ``comparison``; a comparison has two hops at
                least.

        Raises:
            ConfigError: the hops are not within 1 to 5, or the world does not yield as many
                different questions.
        """
        return make_questions(
            self.entities,
            self.facts,
            self.seed,
            num,
            seed=seed,
            hops=(min_hops, max_hops),
            kinds=kinds,
        )


def generate_world(pages: int, seed: int) -> World:
    """A world of exactly so many pages.

    Args:
        pages: at least 200. Facts lie in arrays and texts are written on demand.
        seed: 0 or more.
    """
    if pages < MIN_PAGES:
        raise ConfigError(f"a world needs at least {MIN_PAGES} pages, got {pages}")
    if seed < 0:
        raise ConfigError(f"the seed of a world must be 0 or more, got {seed}")
    entities, name = make_entities(load_schema(), pages, seed)
    return World(entities, make_facts(entities, seed), name=name, seed=seed)
