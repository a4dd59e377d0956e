"""Settings of the documentation: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from rtgp._provenance import __version__ as release  # noqa: E402, F401

project = "rtgp"
author = "the rtgp developers"
html_title = "rtgp"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_pages",
    "references",
    "benchmark_tables",
    "layers",
    "mathml",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_ext", "pictures"]
smartquotes = False  # what stands between quotes is mostly a value
default_role = "code"  # docstrings and options are written with single backticks

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Types of arguments are words, not references: the signature has the links.
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["rtgp.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _scroll_drawings(app, page, template, context, doctree):
    if page == "walk":
        app.add_css_file("drawings.css")


def setup(app):
    app.connect("html-page-context", _scroll_drawings)
