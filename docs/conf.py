"""Configuration of the site, which `make docs` builds. Warnings are errors, and no page loads anything from a host."""

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import doublecv

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# The cells compile many small programs and run each briefly, so compile time dominates.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The kernels that execute the pages import the modules beside them.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

# Suppress one line of log per executed page.
logging.getLogger("traitlets").setLevel(logging.WARNING)

project = "doublecv"
author = "the doublecv authors"
version = release = doublecv.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_design",
    "sphinx_copybutton",
    "gallery",
]
exclude_patterns = ["results/*", "build"]
nitpicky = True
# `name` in docstrings is code.
default_role = "code"
# Commands in pages are not Python.
highlight_language = "none"

html_theme = "furo"
html_title = f"doublecv {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_domain_indices = False

# One file of MathJax that contains its glyphs as outlines, so that no fonts are fetched.
_mathjax = find_spec("sphinx-mathjax-offline")
assert _mathjax is not None
assert _mathjax.origin is not None
html_static_path = ["_static", str(Path(_mathjax.origin).parent / "static" / "mathjax" / "tex-svg.js")]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
mathjax_path = "tex-svg.js"
# An undefined macro is an error that the tests see, instead of red text.
mathjax3_config = {"tex": {"packages": {"[-]": ["noundefined", "noerrors"]}}}

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_merge_streams = True
nb_render_markdown_format = "myst"

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_numpy_docstring = False
# Types of other packages, array shapes and the internals of the laboratory have no page to link to.
nitpick_ignore_regex = [
    ("py:class", r"(?!doublecv\.(?!lab\.)).*"),
    ("py:class", r"doublecv\.estimators\.registry\.names"),
]
