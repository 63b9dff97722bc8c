"""Variance of the estimators at the parameters of a trained model."""
