"""Damage drawn from a seed ends in an error of ours or in an answer, in bounded time and memory."""

import fuzzing
import pytest

from fedtrees.core.errors import Problem, Problems

COUNT = 120  # of each; thousands are for the command


@pytest.mark.long
@pytest.mark.parametrize("kind", fuzzing.KINDS)
def test_damage_is_refused_or_read_in_bounded_time_and_memory(kind):
    found, refused = fuzzing.run(kind, seed=0, count=COUNT)
    assert not found, f"{len(found)} cases, the first: {found[0]}"
    assert 0.2 < refused / COUNT < 0.98  # neither is nothing damaged, nor all refused


def test_a_name_as_long_as_a_page_is_told_by_its_beginning():
    found = Problems("a.csv", [Problem(f"no column {'9' * 5000!r}; known: b")])
    assert str(found) == f"a.csv: no column '{'9' * 59}... known: b"


def test_what_goes_wrong_is_found(tmp_path, monkeypatch):
    """A traceback, a case that takes too long and one that says too much."""

    def wrong(rng, folder):
        yield "file"
        raise KeyError("x")

    def slow(rng, folder):
        yield "file"
        while True:
            pass

    def long(rng, folder):
        from fedtrees.core.errors import DataError

        yield "file"
        raise DataError("x" * 10_000)

    fuzzing.signal.signal(fuzzing.signal.SIGPROF, fuzzing._slow)
    monkeypatch.setattr(fuzzing, "SECONDS", 0.2)
    told = {wrong: "KeyError: 'x'", slow: "took more than 0.2 s", long: "says 10000 characters"}
    for read, said in told.items():
        monkeypatch.setitem(fuzzing.READ, "models", read)
        what, fault, _ = fuzzing.case("models", 0, 0, tmp_path)
        assert (what, said in fault) == ("file", True)
