"""The report of an audit can be read on a narrow screen."""

import re

import trained_models as trained

from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.page import render


def test_sentences_in_tables_keep_their_width(tmp_path):
    """Without a minimum width, columns of numbers would narrow them to one word per line. The
    table scrolls instead.
    """
    page = render(audit(read_model(trained.central(tmp_path / "m.json", 3).path)), None)
    assert re.search(r"td\.prose\{min-width:\d+rem", page)
    for cell in ("H and G of the leaf", "the step of every inner node", "column "):
        assert re.search(rf'<td class="prose"[^>]*>{cell}', page)
    assert page.count('<div class="scroll"') == page.count("<table>")
