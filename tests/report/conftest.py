"""One synthetic run and its report for every test of this folder."""

import pytest
from synthetic_run import SETTINGS, write_run
from synthetic_run import rows as made

from fedtrees.report import load_rows, write_report


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    table = [*made(SETTINGS[:1]), *made(SETTINGS[3:])]
    return write_run(tmp_path_factory.mktemp("run"), table)


@pytest.fixture(scope="session")
def rows(run):
    return load_rows(run)


@pytest.fixture(scope="session")
def report(run):
    return write_report(run)
