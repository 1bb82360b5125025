"""Optional libraries, imported where they are used."""

import importlib
from typing import Any

from spaniel.errors import ConfigError


def import_extra(module: str, extra: str) -> Any:
    """The module, or a ``ConfigError`` that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ConfigError(
            f"{error.name} is not installed: run `pip install 'spaniel[{extra}]'`"
        ) from None
