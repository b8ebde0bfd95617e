"""How Sphinx builds these pages: `python -m sphinx -W -n docs docs/_build`.

What the program knows of itself (fields, options, codes, terms) is put into the pages of `reference/` when they are read, so
that no page can be out of date. Nothing in the output is loaded from another host.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from meshwright import __version__  # noqa: E402 - the checkout was not on the path before
from scripts.documentation import filled  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "meshwright"
author = "the authors of meshwright"
copyright = "the authors of meshwright, Apache-2.0"  # noqa: A001 - the name that Sphinx reads
version = release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
root_doc = "index"
nitpicky = True
# Addresses of a service that the reader has started.
linkcheck_ignore = [r"http://127\.0\.0\.1"]

# Headings down to the third level can be linked to by the anchor that a Git host gives them, too.
myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "colon_fence"]

html_theme = "furo"
html_title = f"meshwright {__version__}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def _fill(_app: Sphinx, _docname: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def setup(app: Sphinx) -> None:
    """Has every page filled before it is parsed."""
    app.connect("source-read", _fill)
