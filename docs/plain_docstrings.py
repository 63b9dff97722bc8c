"""Docstrings of plain text for Sphinx: indented equations become literal blocks, and `code` is code.

The docstrings read well as they stand, with equations in plain letters. To reStructuredText an indented block is a
quotation, `name` is a reference, and the bars of |x| and the star of R* are markup.
"""

import re

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
MARKUP = re.compile(r"([*|\\]|_(?=\W))")
CODE = re.compile(r"(`[^`]+`)")


def setup(app):
    """Come before napoleon, which turns the sections into markup."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True}


def _process(app, what, name, obj, options, lines):
    lines[:] = to_restructured_text(lines)
    if what in ("property", "attribute", "data") and lines:
        # An empty comment: in a first line with a colon, napoleon takes what stands before it for a type.
        lines[:0] = ["..", ""]


def to_restructured_text(lines):
    """The same lines, with literal blocks and code marked as such."""
    marked, in_section, in_literal, after_blank = [], False, False, True
    for line in lines:
        indented = line.startswith(" ")
        if line.strip() and not indented:
            in_section, in_literal = bool(SECTION.match(line)), False
        if indented and after_blank and not in_section and not in_literal:
            in_literal = True
            marked += ["::", ""]
        after_blank = not line.strip()
        is_verbatim = in_literal or line.lstrip().startswith((">>>", "..."))
        marked.append(line if is_verbatim else _escaped(line))
    return marked


def _escaped(line):
    pieces = CODE.split(line)
    return "".join(f"`{piece}`" if CODE.fullmatch(piece) else MARKUP.sub(r"\\\1", piece) for piece in pieces)
