"""Sphinx configuration: `sphinx-build -W docs docs/_build`."""

import re
import sys
from pathlib import Path

from fedtrees import __version__

project = "fedtrees"
author = "The fedtrees maintainers"
copyright = "2026, the fedtrees maintainers"
release = __version__

extensions = [
    "myst_nb",  # contains myst_parser
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
# Pages about findings to which maintainers could not respond yet. `-t embargo` includes them.
if not tags.has("embargo"):  # noqa: F821, a name of Sphinx
    exclude_patterns += sorted(
        str(page.relative_to(Path(__file__).parent))
        for page in Path(__file__).parent.rglob("*.md")
        if re.match(r"---\n(.*\n)*?tags:.*\bembargo\b", page.read_text(encoding="utf-8"))
    )
nb_execution_mode = "off"  # the tests execute the notebooks and compare their outputs
autosummary_generate = True
templates_path = ["_templates"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"fedtrees {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True  # attributes of a docstring are no separate objects


def setup(app):
    """Write generated pages before the build, and complete the site after it."""
    app.connect("config-inited", _write_registry_pages)
    app.connect("build-finished", _write_pages)
    app.connect("build-finished", _help_screen_readers)


def _write_registry_pages(app, config):
    sys.path.insert(0, str(Path(__file__).parent))
    from registry_pages import write_pages

    write_pages()


def _write_pages(app, error):
    if error is None and app.builder.format == "html":
        from fedtrees.benchmarks import gallery
        from fedtrees.report.leaderboard import board
        from fedtrees.report.submissions import read_all

        pages = {"gallery": gallery.page(), "leaderboard": board(read_all(gallery.SUBMISSIONS), 0)}
        for name, text in pages.items():
            Path(app.outdir, f"{name}.html").write_text(text, encoding="utf-8")


#: Parts of pages that a screen reader cannot use, and their replacements.
REPLACED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="Contents of this page" class="toc-drawer',
    '<div class="content-icon-container">': (
        '<div class="content-icon-container" role="region" aria-label="Source and theme">'
    ),
    # Blocks and tables that scroll must be reachable by the keyboard.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
    "<th></th>": "<td></td>",
}


def _help_screen_readers(app, error):
    if error is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            text = changed = path.read_text(encoding="utf-8")
            for part, replacement in REPLACED.items():
                changed = changed.replace(part, replacement)
            if changed != text:
                path.write_text(changed, encoding="utf-8")
