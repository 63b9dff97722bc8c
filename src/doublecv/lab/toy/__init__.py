"""Run the toy experiment of the paper."""
