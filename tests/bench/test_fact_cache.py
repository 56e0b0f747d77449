"""Facts about the installation are computed once, and again after any change."""

import pytest

from fedtrees.core.registry import register
from fedtrees.experiments import environment


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return a function that asks a question, and the list of answers that were computed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(type(register), "is_built_in", True)
    computed = []

    def answer(question):
        def compute():
            computed.append(question)
            return {"answer": [question, 1.5, None]}

        return environment.recall(question, compute)

    return answer, computed


def test_an_answer_is_computed_once_and_equal_when_it_is_read(ask):
    answer, computed = ask
    assert answer("a") == answer("a") == {"answer": ["a", 1.5, None]}
    assert answer("b") != answer("a")
    assert computed == ["a", "b"]


def test_a_change_of_the_source_computes_the_answer_again(ask, monkeypatch):
    answer, computed = ask
    answer("a")
    monkeypatch.setattr(environment, "package_digest", lambda: "another")
    answer("a")
    assert computed == ["a", "a"]


def test_answers_that_a_plugin_can_change_are_not_stored(ask, monkeypatch, tmp_path):
    answer, computed = ask
    monkeypatch.setattr(type(register), "is_built_in", False)
    assert answer("a") == answer("a")
    assert computed == ["a", "a"]
    assert not [*tmp_path.rglob("*.json")]


def test_a_damaged_entry_or_an_impossible_folder_only_costs_time(ask, tmp_path):
    answer, computed = ask
    answer("a")
    (entry,) = tmp_path.rglob("*.json")
    entry.write_text("{")
    assert answer("a") == {"answer": ["a", 1.5, None]}
    entry.unlink()
    entry.parent.rmdir()
    entry.parent.write_text("a file in the place of the folder")
    assert answer("a") == {"answer": ["a", 1.5, None]}
    assert computed == ["a", "a", "a"]


def test_unused_entries_are_removed(ask, tmp_path, monkeypatch):
    answer, _ = ask
    answer("a")
    monkeypatch.setattr(environment, "LIFETIME", -1.0)
    answer("b")
    assert len([*tmp_path.rglob("*.json")]) == 1
