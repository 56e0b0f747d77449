"""A synthetic run and its report, shared by all tests of this folder."""

import pytest
from synthetic_run import SETTINGS, write_run
from synthetic_run import rows as synthetic_rows

from fedtrees.report import load_rows, write_report


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    table = [*synthetic_rows(SETTINGS[:1]), *synthetic_rows(SETTINGS[3:])]
    return write_run(tmp_path_factory.mktemp("run"), table)


@pytest.fixture(scope="session")
def rows(run):
    return load_rows(run)


@pytest.fixture(scope="session")
def report(run):
    return write_report(run)
