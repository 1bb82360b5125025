"""Everything Spaniel raises on purpose, and the boundary that names a failed rollout.

    SpanielError
      ConfigError(ValueError)        a recipe, an override or an argument is wrong
      DataError(ValueError)          a file or record is not what it claims to be
      ArtifactError(RuntimeError)    a run directory is missing, incomplete or of another version
      QueryError(ValueError)         a query breaks the query language; its writer can mend it
      EndpointError(RuntimeError)    a model behind an endpoint gave no answer to use
      TrainingError(RuntimeError)    a check on the running training failed; going on would be a lie
      RolloutError(RuntimeError)     one trajectory failed through the infrastructure
        ToolError                      the search engine or a tool broke
        PolicyError                    the model that samples broke
        RewardError                    the scorer broke

The command line turns the first four into one line and exit code 2 (the user can mend
them), the others into one line and exit code 1. A ``RolloutError`` never becomes a reward
of zero: it ends its trajectory as failed by the infrastructure, is counted, and is kept out
of the gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class SpanielError(Exception):
    """Base of every error raised on purpose. The message is one line for a person."""


class ConfigError(SpanielError, ValueError):
    """A recipe, an override or a command-line argument is wrong."""


class DataError(SpanielError, ValueError):
    """A file or record is not what it claims to be."""


class ArtifactError(SpanielError, RuntimeError):
    """A run directory is missing, incomplete, or was made by other settings."""


class QueryError(SpanielError, ValueError):
    """A search query breaks the query language; whoever wrote it can mend it."""


class EndpointError(SpanielError, RuntimeError):
    """A model behind an endpoint gave no usable answer, or may not be asked any more."""


class TrainingError(SpanielError, RuntimeError):
    """A check on the running training failed; going on would produce meaningless numbers."""


class RolloutError(SpanielError, RuntimeError):
    """One trajectory failed through the infrastructure, not through the model."""


class ToolError(RolloutError):
    """The search engine or a tool broke."""


class PolicyError(RolloutError):
    """The model that samples broke."""


class RewardError(RolloutError):
    """The scorer broke."""


@contextmanager
def boundary(
    error: type[RolloutError], what: str, *, passing: type[SpanielError] = RolloutError
) -> Iterator[None]:
    """Name whatever breaks inside after the boundary it broke at.

    Args:
        error: the ``RolloutError`` subclass to raise.
        what: the operation, for the message: ``"search"``, ``"complete"``.
        passing: an error that is no failure of what is inside, and passes through unchanged.

    Raises:
        RolloutError: any other exception from the body, chained. ``RolloutError`` passes
            through unchanged; cancellation and Ctrl-C are not exceptions of the body.
    """
    try:
        yield
    except (RolloutError, passing):
        raise
    except Exception as cause:
        raise error(f"{what} failed: {type(cause).__name__}: {cause}") from cause
