"""Benchmarks of our own: ratios against a baseline, measured in one run."""
