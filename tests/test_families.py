"""A family stands on what is shared, and on no other family: it can be read, or deleted, alone."""

from families import CROSSING, FAMILIES, crossings, modules


def test_one_family_stands_on_others_and_nothing_shared_on_any():
    assert {
        ends: sorted(where) for ends, where in crossings().items() if ends not in CROSSING
    } == {}
    assert {*crossings()} == CROSSING


def test_every_module_of_the_table_is_there():
    there = {name for name, _ in modules()}
    assert {part for parts in FAMILIES.values() for part in parts} <= there
