"""Families build on shared modules and not on one another, so that each can be removed."""

import pytest
from families import CROSSING, FAMILIES, crossings, imports_fail, modules, without
from layers import lint


@pytest.mark.long
def test_only_declared_families_import_others_and_shared_modules_import_none():
    imports_by_families = crossings()
    assert {
        families: sorted(modules)
        for families, modules in imports_by_families.items()
        if families not in CROSSING
    } == {}
    assert {*imports_by_families} == CROSSING


def test_every_listed_module_exists():
    there = {name for name, _ in modules()}
    assert {part for parts in FAMILIES.values() for part in parts} <= there


@pytest.mark.parametrize("name", ["crypto", pytest.param("regressions", marks=pytest.mark.slow)])
def test_the_package_works_without_a_family(tmp_path, name):
    """The package works without a family. ``python tests/families.py NAME`` runs all tests."""
    without(name, tmp_path)
    assert imports_fail(tmp_path) == {}
    assert lint(tmp_path).returncode == 0
