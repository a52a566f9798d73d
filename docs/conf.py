"""How Sphinx makes the site of docs/*.md: `make docs`. Whatever it warns of fails the build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # api.md shows this checkout

project = "plimsoll"
copyright = "the plimsoll authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["results", "examples"]
html_theme = "furo"
html_title = "plimsoll"
html_copy_source = False
html_show_sphinx = False
templates_path = []

myst_enable_extensions = []
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of Python, NumPy and JAX are on sites of their own

default_role = "code"  # docstrings write code between single backticks, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
