"""How Sphinx makes the site of docs/*.md: `make docs`. Whatever it warns of fails the build."""

project = "plimsoll"
copyright = "the plimsoll authors, Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["results", "examples"]
html_theme = "furo"
html_title = "plimsoll"
html_copy_source = False
html_show_sphinx = False
templates_path = []

myst_enable_extensions = []
myst_heading_anchors = 4
nitpicky = True
