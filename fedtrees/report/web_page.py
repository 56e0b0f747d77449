"""Render HTML pages that need no network from the templates in ``page_files``.

The content security policy of a page allows exactly the scripts that this package wrote into it,
each by its SHA-256 hash (Content Security Policy Level 3, section 2.3.1). A browser therefore runs
no other script, even if text of a table or of a submission reached the page without escaping.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from fedtrees.core.errors import listed, many
from fedtrees.core.results import measure
from fedtrees.report import wording
from fedtrees.report.cost import TOLERANCE

_SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)


def render(template: str, **context: Any) -> str:
    """Return a page made from one of the templates in ``page_files``.

    Every text of the context is escaped.
    """
    style, script = (Markup(_file(f"report.{kind}").strip()) for kind in ("css", "js"))
    policy = Markup(security_policy([script]))
    page = _environment().get_template(template)
    return page.render(css=style, js=script, policy=policy, **context)


def security_policy(scripts: Iterable[str], images: str = "data:") -> str:
    """Return the content security policy of a page that contains these inline scripts and no other.

    Inline styles are allowed, because the figures set positions and colours in attributes. `images`
    lists the allowed sources of images.

    Examples
    --------
    >>> security_policy([""]).split("; ")[2]
    "script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; img-src {images}"


def inline_scripts(fragment: str) -> list[str]:
    """Return the text of every inline script of an HTML fragment, for `security_policy`."""
    return _SCRIPT.findall(fragment)


@cache
def _environment() -> jinja2.Environment:
    """Return the template engine. It escapes every value and refuses undefined names."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters: dict[str, Any] = {
        "px": lambda v: f"{float(v):.1f}",
        "pieces": lambda text: re.split(r"(?<=[+,\]])|(?=\[)", str(text)),
        "capital": wording.capital,
        "head": lambda key: measure(key).head,
        "listed": lambda names: listed([*names]),
        "signed": lambda v: wording.number(v, 3, signed=True),
    }
    env.filters |= filters
    env.globals |= {"wording": wording, "many": many, "tolerance": TOLERANCE}
    return env


@cache
def _file(name: str) -> str:
    """Return the text of a file in ``page_files``."""
    return (resources.files(__package__) / "page_files" / name).read_text(encoding="utf-8")
