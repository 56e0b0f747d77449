"""Sphinx configuration: `sphinx-build -W docs docs/_build`."""

from fedtrees import __version__

project = "fedtrees"
author = "The fedtrees maintainers"
copyright = "2026, the fedtrees maintainers"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"fedtrees {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
