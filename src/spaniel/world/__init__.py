"""A fictional wiki, generated: documents, links, questions with exact labels."""

from spaniel.world.generate import World, generate_world
from spaniel.world.verify import verify_question

__all__ = ["World", "generate_world", "verify_question"]
