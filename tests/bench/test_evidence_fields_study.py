"""The table of the attacks that read each message field, and the reasons for unread fields."""

import csv
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedtrees.benchmarks.papers.evidence_fields import (
    COLUMNS,
    EMPTY,
    SEALED,
    Piece,
    Run,
    entry_for,
    lines_of,
    pieces_of,
    pieces_read,
    received_view,
    train_run,
    views_without,
    written_reasons,
)
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.messages import Message, load_families
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import LabelSums, LeafValues

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "evidence.md"
TABLE = PAGE.with_suffix(".csv")
#: Protocols that need optional packages, which the table leaves out.
NEED_EXTRAS = {"dp-ebm", "ebm-merge", "fedavg-mlp", "fedsgd-mlp"}


def table():
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def view_of_role(protocol, threat, defense="none", attack="timberstrike"):
    return received_view(train_run(Run(protocol, defense=defense), threat), threat, attack)


def test_every_field_is_read_by_an_attack_or_has_a_reason_and_never_both():
    lines = table()
    assert list(lines[0]) == list(COLUMNS)
    unexplained = [line for line in lines if bool(line["read_by"]) == bool(line["reason"])]
    assert not unexplained


def test_the_reasons_in_the_table_are_the_written_ones_and_each_is_needed():
    reasons, used = written_reasons(), set()
    for line in table():
        if line["reason"] not in ("", SEALED, EMPTY):
            entry = entry_for(reasons, line)
            assert line["reason"] == entry["reason"]
            used.add(tuple(entry.values()))
    assert {tuple(r.values()) for r in reasons if r["protocol"] != "none"} == used


def test_every_reason_begins_with_a_kind_that_the_page_explains():
    kinds = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    written_kinds = {
        row["reason"].partition(":")[0] for row in written_reasons() if row["protocol"] != "none"
    }
    assert written_kinds | {SEALED.partition(":")[0], EMPTY.partition(":")[0]} == kinds


def test_the_page_names_every_message_type_with_evidence_that_no_attack_uses():
    unused = {line["message"] for line in table() if line["reason"].startswith("open")}
    named = set(re.findall(r"`(\w+)\.\w+`", PAGE.read_text().partition("**Open.**")[2]))
    assert unused
    assert unused <= named


def all_message_types(message_class=Message):
    for subclass in message_class.__subclasses__():
        yield from all_message_types(subclass)
        has_fields = is_dataclass(subclass) and subclass.__module__.startswith("fedtrees.messages.")
        if has_fields and fields(subclass):
            yield subclass.__name__


def test_every_message_type_is_in_the_table_or_crosses_in_no_studied_run():
    load_families()
    absent = {r["message"] for r in written_reasons() if r["protocol"] == "none"}
    present = {line["message"] for line in table()}
    assert present | absent == set(all_message_types())
    assert not present & absent


def test_the_table_names_registered_attacks_and_all_protocols():
    lines = table()
    studied = {line["protocol"] for line in lines}
    assert studied | NEED_EXTRAS == set(register.names("protocol"))
    named = {name for line in lines for name in line["read_by"].split()}
    assert named <= set(register.names("attack"))


@pytest.mark.long
def test_the_lines_of_one_protocol_are_those_that_are_measured_now():
    assert lines_of("local-ensembles") == [
        line for line in table() if line["protocol"] == "local-ensembles"
    ]


@pytest.mark.parametrize("attack", ["timberstrike", "histogram-peeling", "membership"])
def test_attacks_at_the_server_read_the_leaf_values_that_it_releases(attack):
    view = view_of_role("fedtree-hist", "server", "split-only", attack)
    sent = Piece("sent", "LeafValues", "value")
    others = [piece for piece in pieces_of(view) if piece != sent]
    assert list(pieces_read(attack, view, others)) == [sent]


def test_a_removed_field_is_absent_then_neutral_then_reversed():
    view = view_of_role("fedtree-hist", "client")
    piece = Piece("received", "LeafValues", "g")
    original = [m for _, m in view.messages(LeafValues)]
    absent, neutral, reverse = (
        [m for _, m in less.messages(LeafValues)] for less in views_without(view, piece)
    )
    assert [m.g for m in absent] == [None] * len(original)
    assert all((m.g == 0).all() for m in neutral)
    for changed, message in zip(reverse, original, strict=True):
        np.testing.assert_array_equal(changed.g, message.g[::-1])
        np.testing.assert_array_equal(changed.value, message.value)


@dataclass(frozen=True)
class ReadsOneField(Attack):
    """Claim labels that depend on one field, and copy a message without use."""

    name = "reads-one-field"

    def run(self, view, rng):
        message = next(m for _, m in view.messages(LabelSums))
        replace(message)
        return Guess((Labels(np.arange(2), message.sums[:2].astype(np.int64)),))


def test_only_the_field_that_decides_the_guess_counts_as_read(monkeypatch):
    view = view_of_role("fedtree-hist", "server")
    monkeypatch.setattr(register, "make", lambda kind, spec: ReadsOneField())
    assert list(pieces_read("reads-one-field", view)) == [Piece("received", "LabelSums", "sums")]
