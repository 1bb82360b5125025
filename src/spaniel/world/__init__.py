"""A fictional wiki, generated: documents, links, questions with exact labels."""

from spaniel.world.generate import World, generate_world
from spaniel.world.sides import sided_questions
from spaniel.world.verify import verify_question

__all__ = ["World", "generate_world", "sided_questions", "verify_question"]
