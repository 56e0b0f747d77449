"""Write the report of an audit as a self-contained HTML file, ``audit.html.j2``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core.files import write_text
from fedtrees.model_audit import tables
from fedtrees.model_audit.attack import AttackResult
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.verdict import advice, verdict
from fedtrees.report.web_page import render as render_page

MOST_TREES, MOST_LEAVES, MOST_BARS = 24, 30, 500


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
        facts=tables.headline(audit),
        verdict=list(verdict(audit)),
        todo=lines,
        settings=tables.settings_text(audit),
        fields=tables.fields_table(audit),
        trees=tables.trees_table(audit, MOST_TREES),
        bars=_bars(audit),
        leaves=tables.leaves_table(audit, MOST_LEAVES),
        attacked=attacked,
        scores=tables.attack_table(attacked) if attacked and attacked.reason is None else None,
        version=__version__,
    )


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
