"""Spaniel trains a small language model to search your documents, and measures that it worked."""

__version__ = "0.1.0"
