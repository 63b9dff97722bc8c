"""Benchmarks of the estimators."""
