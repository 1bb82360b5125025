"""Sampling through vLLM servers, which live in an environment of their own."""
