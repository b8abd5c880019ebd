"""Benchmarks, one script per question, and no part of the package."""
