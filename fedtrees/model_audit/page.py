"""The report of an audit as a self-contained HTML file that needs no network."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core.files import write_text
from fedtrees.model_audit.attack import AttackResult
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.tables import (
    ReportTable,
    attack_table,
    fields_table,
    headline,
    leaves_table,
    settings_text,
    trees_table,
)
from fedtrees.model_audit.verdict import advice, verdict
from fedtrees.report.web_page import render as render_page

MOST_TREES, MOST_LEAVES, MOST_BARS = 24, 30, 500

FIELDS = (
    "A prediction needs splits and leaf values. Everything else in the file describes "
    "the training rows."
)
TREES = (
    "The number of rows of a leaf is shown only if it follows with certainty, under the condition "
    "that the verdict states, if it states one. Blue: leaves whose number of rows is known. "
    "Orange: leaves whose labels are known, too. Grey: leaves of which neither is known."
)
LEAVES = (
    "The leaves with the fewest training rows, and the conditions that the rows of each leaf meet."
)
NO_LEAVES = "The file gives no upper bound on the number of rows of any leaf."
ATTACK = (
    "Blind is the best guess of an adversary with the same rows but without the model. "
    "The result is for one attack and one seed: a low figure only shows that this "
    "attack fails."
)


def write_page(
    path: Path, audit: Audit, attacked: AttackResult | None, scrubbed: Sequence[str] = ()
) -> Path:
    """Write the report of an audit.

    Parameters
    ----------
    path : Path
        The HTML file.
    audit : Audit
        The audit.
    attacked : AttackResult or None
        Result of the attack, None if no attack was requested.
    scrubbed : sequence of str
        Sentences on the changes by scrubbing, empty if there was none.

    Returns
    -------
    path : Path

    Raises
    ------
    StoreError
        If the file cannot be written.
    """
    return write_text(path, render(audit, attacked, scrubbed))


def render(audit: Audit, attacked: AttackResult | None, scrubbed: Sequence[str] = ()) -> str:
    """Return the report as one HTML document that loads no further files."""
    lines = [*scrubbed, *advice(audit, bool(scrubbed))] or ["Nothing in this file can be left out."]
    return render_page(
        "audit.html.j2",
        title=f"{audit.model.path.name}: training rows that this model reveals",
        facts=headline(audit),
        verdict=list(verdict(audit)),
        todo=lines,
        sections=list(_sections(audit, attacked)),
        version=__version__,
    )


def _sections(audit: Audit, attacked: AttackResult | None) -> Iterator[dict[str, Any]]:
    settings = f"Training settings: {settings_text(audit)}."
    yield _section("fields", "Contents of the file", FIELDS, fields_table(audit), settings)
    trees = _section("trees", "Trees", TREES, trees_table(audit, MOST_TREES))
    yield {**trees, "bars": _bars(audit)}
    leaves = leaves_table(audit, MOST_LEAVES)
    if leaves.lines:
        yield _section("leaves", "Exposed leaves", LEAVES, leaves)
    else:
        yield _section("leaves", "Exposed leaves", NO_LEAVES, None)
    if attacked is not None and attacked.reason is not None:
        yield _section("attack", "Attack", f"No attack was run: {attacked.reason}.", None)
    elif attacked is not None:
        yield _section("attack", "Attack", ATTACK, attack_table(attacked))


def _section(
    id: str, title: str, lede: str, shown: ReportTable | None, *notes: str
) -> dict[str, Any]:
    """Return the values that the template needs for one section."""
    first_notes = [f"{shown.note[:1].upper()}{shown.note[1:]}."] if shown and shown.note else []
    return {"id": id, "title": title, "lede": lede, "table": shown, "notes": [*first_notes, *notes],
            "bars": None}  # fmt: skip


def _bars(audit: Audit) -> dict[str, Any]:
    """Return one bar per tree: all leaves, those with counted rows, and with counted labels."""
    trees = audit.trees[:MOST_BARS]
    width, height = 1000.0, 90.0
    step = width / max(len(trees), 1)
    top = max((len(t.leaf) for t in trees), default=1)
    rects = []
    # Each tree is drawn as three overlapping bars. Later bars cover the lower part of earlier ones.
    for i, t in enumerate(trees):
        counts = len(t.leaf), int(t.counted.sum()), int(t.exact.sum())
        for count, kind in zip(counts, ("all", "counted", "exact"), strict=True):
            tall = height * count / top
            rects.append((kind, i * step, height - tall, 0.86 * step, tall))
    about = f"{len(trees)} trees: leaves whose rows and labels are known; numbers in the table"
    return {"about": about, "rects": rects}
