"""The laboratory: the paper's experiments as functions and as the command `doublecv`. It needs `doublecv[lab]`."""
