"""Measure the variance of estimators at trained models."""
