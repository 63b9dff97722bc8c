"""Compare the runs of a sweep with the paper's numbers: a web page and tables."""
