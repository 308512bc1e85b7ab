"""Speeds measured in turn, for ``scripts/benchmark.py``."""
