"""The stages of a run, in order: each reads what earlier ones made and writes its own folder.

corpus -> index -> split -> [demonstrations -> sft] -> preflight -> rl -> eval
"""

from spaniel.stages.base import make_base, make_base_demonstrations
from spaniel.stages.data import change_index, make_corpus, make_index, make_questions
from spaniel.stages.everything import make_eval, make_everything
from spaniel.stages.rl import make_preflight, make_rl
from spaniel.stages.sft import make_demonstrations, make_sft

__all__ = [
    "change_index",
    "make_base",
    "make_base_demonstrations",
    "make_corpus",
    "make_demonstrations",
    "make_eval",
    "make_everything",
    "make_index",
    "make_preflight",
    "make_questions",
    "make_rl",
    "make_sft",
]
