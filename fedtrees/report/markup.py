"""Small pieces of HTML; everything that is not already `Html` is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence


class Html(str):
    """Text that is already markup."""


def esc(content: object) -> Html:
    """Return content as markup: `Html` as it is, anything else escaped."""
    return content if isinstance(content, Html) else Html(html.escape(str(content)))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Return one element; ``class_`` is class, ``data_x`` is data-x; None or False leaves out."""
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        given.append(f" {attribute}" if value is True else f' {attribute}="{esc(value)}"')
    inside = "".join(esc(c) for c in content)
    return Html(f"<{name}{''.join(given)}>{inside}</{name}>")


def join(parts: Iterable[object], between: object = "") -> Html:
    """Join pieces of markup."""
    return Html(esc(between).join(esc(p) for p in parts))


def _plain(content: object) -> str:
    """Return the text of a heading, without markup."""
    if not isinstance(content, Html):
        return str(content)
    text = re.sub(r"<[^>]*>", "", re.sub(r"<br ?/?>|<small>", " ", content))
    return " ".join(html.unescape(text).split())


def table(
    caption: object,
    header: Sequence[object],
    lines: Iterable[Sequence[object]],
    numeric: Iterable[int] = (),
    row_class: Sequence[str] = (),
    column_class: Mapping[int, str] | None = None,
) -> Html:
    """Return a table with a caption; the first cell of every line is its header.

    `numeric`: Columns aligned to the right in tabular figures. `row_class`: A class per line, ""
    for none. `column_class`: A class per column index.
    """
    classes = dict.fromkeys(numeric, "n") | dict(column_class or {})
    names = [_plain(h) for h in header]

    def cell(i: int, content: object) -> Html:
        kind = classes.get(i)
        if i == 0:
            return tag("th", content, scope="row", class_=kind)
        return tag("td", content, class_=kind, data_head=names[i])

    head = join(tag("th", h, scope="col", class_=classes.get(i)) for i, h in enumerate(header))
    body = []
    for at, line in enumerate(lines):
        name = row_class[at] if at < len(row_class) else ""
        body.append(tag("tr", join(cell(i, c) for i, c in enumerate(line)), class_=name or None))
    whole = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", join(body))
    )
    # Wide tables scroll on their own; a scrolling region must be reachable by keyboard.
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
