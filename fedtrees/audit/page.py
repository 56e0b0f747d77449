"""The report of an audit: one HTML file, readable offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtrees import __version__
from fedtrees.audit.attack import AttackResult
from fedtrees.audit.audit import Audit
from fedtrees.audit.tables import (
    Shown,
    attack_table,
    fields_table,
    headline,
    leaves_table,
    settings_text,
    trees_table,
)
from fedtrees.audit.verdict import advice, verdict
from fedtrees.report.html import write_text
from fedtrees.report.markup import Html, join, table, tag
from fedtrees.report.page import page
from fedtrees.report.style import COLOURS, MUTED, RULE

MOST_TREES, MOST_LEAVES, MOST_BARS = 24, 30, 500

FIELDS = (
    "Splits and leaf values are what a prediction needs. Everything else in the file describes "
    "the rows the model was trained on."
)
TREES = (
    "Rows of a leaf are known only where they are certain. Blue: leaves whose rows are known; "
    "orange: whose labels are known too; grey: neither."
)
LEAVES = "The groups of fewest training rows, and the conditions a row meets to be in one."
NO_LEAVES = "No leaf's rows are bounded from above by this file."
ATTACK = (
    "Blind is the best guess of somebody with the same rows who never saw the model. One "
    "attack, one seed: a low figure says that this attack fails."
)


def write_page(
    path: Path, audit: Audit, attacked: AttackResult | None, scrubbed: Sequence[str] = ()
) -> Path:
    """Write the report; `scrubbed` is what scrubbing changed, in sentences.

    Raises
    ------
    StoreError
        If it cannot be written.
    """
    return write_text(path, render(audit, attacked, scrubbed))


def render(audit: Audit, attacked: AttackResult | None, scrubbed: Sequence[str] = ()) -> str:
    """Return the report as one HTML document that loads nothing."""
    settings = tag("p", f"Training settings: {settings_text(audit)}.")
    bars = tag("figure", _bars(audit), tag("figcaption", "Leaves per tree, in model order"))
    leaves = leaves_table(audit, MOST_LEAVES)
    sections = [
        ("verdict", "Verdict", _verdict(audit)),
        ("fields", "What it carries", join([_table(FIELDS, fields_table(audit)), settings])),
        ("trees", "Trees", join([bars, _table(TREES, trees_table(audit, MOST_TREES))])),
        ("leaves", "Exposed leaves", _table(LEAVES, leaves) if leaves.lines else _note(NO_LEAVES)),
    ]
    if attacked is not None:
        sections.append(("attack", "Attack", _attack(attacked)))
    lines = [*scrubbed, *advice(audit, bool(scrubbed))] or ["Nothing in this file can be left out."]
    sections.append(("todo", "What to do", _list(lines)))
    title = f"{audit.model.path.name}: what this model tells about its training rows"
    links = join(tag("a", short, href=f"#{name}") for name, short, _ in sections)
    body = join(
        tag("section", tag("h2", short), inside, id=name) for name, short, inside in sections
    )
    facts = tag("p", headline(audit), ".", class_="facts")
    whole = join(
        [
            tag("a", "Skip to the report", href="#main", class_="skip"),
            tag("header", tag("h1", title), facts, class_="top"),
            tag("nav", tag("div", links), class_="bar", aria_label="Sections"),
            tag("main", body, id="main"),
            tag("footer", f"Written by fedtrees {__version__}. This page loads nothing."),
        ],
        Html("\n"),
    )
    return page(title, whole, {})


def _verdict(audit: Audit) -> Html:
    first, *others = verdict(audit)
    more = _list(others) if others else ""
    answer = tag("article", tag("p", first, class_="leak"), more, class_="answer")
    return tag("div", answer, class_="answers")


def _bars(audit: Audit) -> Html:
    """Draw a bar per tree: how many of its leaves are counted, how many with labels."""
    trees = audit.trees[:MOST_BARS]
    width, height = 1000.0, 90.0
    step = width / max(len(trees), 1)
    top = max((len(t.leaf) for t in trees), default=1)
    parts = []
    for i, t in enumerate(trees):
        counts = len(t.leaf), int(t.counted.sum()), int(t.exact.sum())
        for count, colour in zip(counts, (RULE, *COLOURS[:2]), strict=True):
            tall = height * count / top
            parts.append(
                f'<rect x="{i * step:.2f}" y="{height - tall:.2f}" width="{0.86 * step:.2f}" '
                f'height="{tall:.2f}" fill="{colour}"/>'
            )
    about = f"{len(trees)} trees: leaves whose rows and labels are known; numbers in the table"
    return Html(
        f'<svg viewBox="0 0 {width:g} {height:g}" width="100%" height="{height:g}" role="img" '
        f'preserveAspectRatio="none" aria-label="{about}" stroke="none" color="{MUTED}">'
        f"{''.join(parts)}</svg>"
    )


def _attack(attacked: AttackResult) -> Html:
    if attacked.reason is not None:
        return _note(f"No attack was run: {attacked.reason}.")
    return _table(ATTACK, attack_table(attacked))


def _list(lines: Sequence[str]) -> Html:
    return tag("ul", join(tag("li", line) for line in lines))


def _note(text: str) -> Html:
    return tag("p", text, class_="note")


def _table(lede: str, shown: Shown) -> Html:
    note = tag("p", f"{shown.note[:1].upper()}{shown.note[1:]}.") if shown.note else ""
    wide = dict.fromkeys(shown.prose, "prose")
    lines = table(shown.title, shown.columns, shown.lines, shown.numeric, column_class=wide)
    return join([tag("p", lede, class_="lede"), lines, note])
