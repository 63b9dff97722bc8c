"""How the site is built: `make docs`. Warnings are errors, and nothing on the site comes from another host."""

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import doublecv

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# The cells compile many small programs and run each for an instant: compiling them is what takes the time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The kernels that execute the pages start here, and import what the pages share.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

# One line for every page that is executed is no news.
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
    "plain_docstrings",
    "gallery",
]
exclude_patterns = ["results/*", "build"]
nitpicky = True
# Equations in docstrings and commands are no Python.
highlight_language = "none"

html_theme = "furo"
html_title = f"doublecv {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_domain_indices = False

# One file of MathJax, whose glyphs are outlines in that same file: no fonts to fetch.
_mathjax = find_spec("sphinx-mathjax-offline")
assert _mathjax is not None
assert _mathjax.origin is not None
html_static_path = ["_static", str(Path(_mathjax.origin).parent / "static" / "mathjax" / "tex-svg.js")]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
mathjax_path = "tex-svg.js"
# A macro that does not exist is an error that the tests see, and not a word in red.
mathjax3_config = {"tex": {"packages": {"[-]": ["noundefined", "noerrors"]}}}

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
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
# Types in signatures are for reading: those of other packages, shapes, and the inside of the laboratory have no page.
nitpick_ignore_regex = [("py:class", r"(?!doublecv\.(?!lab\.)).*")]
