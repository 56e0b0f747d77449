"""Pages that load nothing: templates with their style and script put in."""

import re
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup


def render(template: str, **context: Any) -> str:
    """Return a page of one of the templates beside this module.

    Everything in the context is text and is escaped.
    """
    style, script = (Markup(_file(f"report.{kind}").strip()) for kind in ("css", "js"))
    return _environment().get_template(template).render(css=style, js=script, **context)


@cache
def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["px"] = lambda v: f"{float(v):.1f}"
    env.filters["pieces"] = lambda text: re.split(r"(?<=[+,\]])|(?=\[)", str(text))
    return env


@cache
def _file(name: str) -> str:
    return (resources.files(__package__) / "page_files" / name).read_text(encoding="utf-8")
