"""Time the estimators."""
