"""Sweeps: the runs behind the paper's tables and figures."""
