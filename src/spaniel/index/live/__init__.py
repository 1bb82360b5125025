"""The live twin of the index: a web-search API, and the pages behind its results."""
