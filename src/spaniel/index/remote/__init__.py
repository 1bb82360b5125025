"""Engines that live in other processes."""
