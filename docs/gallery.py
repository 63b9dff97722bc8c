"""The page of examples, made of the examples: what each says of itself, its figure, and its code."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"


def setup(app):
    """Write the page's text when Sphinx reads it."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}


def _fill(app, name, source):
    if name == "examples":
        source[0] += "\n".join(section(path) for path in sorted(EXAMPLES.glob("*.py")))


def section(path):
    """One example: its docstring, whose first line is the heading; its figure and its results, from docs/gallery."""
    heading, _, rest = (ast.get_docstring(ast.parse(path.read_text())) or path.stem).partition("\n")
    prose, figure = [], f"gallery/{path.stem}.png"
    for paragraph in rest.strip().split("\n\n"):
        indented = paragraph.startswith(" ")
        prose.append(f"```\n{paragraph.strip()}\n```" if indented else paragraph)
    picture = f"![What {path.stem} draws]({figure})" if (HERE / figure).exists() else ""
    results = HERE / f"gallery/{path.stem}.txt"
    outcome = results.read_text() if results.exists() else ""
    code = f"```{{literalinclude}} ../examples/{path.name}\n:language: python\n```"
    folded = f":::{{dropdown}} examples/{path.name}\n{code}\n:::"
    return "\n\n".join([f"\n## {heading.rstrip('.')}", *prose, picture, outcome, folded, ""])
