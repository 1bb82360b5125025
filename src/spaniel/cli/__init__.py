"""The command line."""

from spaniel.cli.commands import app, main

__all__ = ["app", "main"]
