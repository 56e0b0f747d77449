"""Damage that is drawn from a seed gives an error of fedtrees or a result, in bounded time and
memory.
"""

import fuzzing
import pytest

from fedtrees.core.errors import Problem, Problems

COUNT = 120  # Cases of each kind. The command checks thousands.


@pytest.mark.long
@pytest.mark.parametrize("kind", fuzzing.KINDS)
def test_damaged_files_are_refused_or_read_in_bounded_time_and_memory(kind):
    findings, refused = fuzzing.run_limited_process(kind, seed=0, count=COUNT)
    assert not findings, f"{len(findings)} cases, the first: {findings[0]}"
    assert 0.2 < refused / COUNT < 0.98  # Some cases are refused, and some are not.


def test_a_very_long_name_is_shortened_in_the_message():
    problems = Problems("a.csv", [Problem(f"no column {'9' * 5000!r}; known: b")])
    assert str(problems) == f"a.csv: no column '{'9' * 59}... known: b"


def test_faults_are_detected(tmp_path, monkeypatch):
    """A traceback, a case that takes too long, and a case with a long message."""

    def raise_key_error(rng, folder):
        yield "file"
        raise KeyError("x")

    def loop_forever(rng, folder):
        yield "file"
        while True:
            pass

    def raise_long_error(rng, folder):
        from fedtrees.core.errors import DataError

        yield "file"
        raise DataError("x" * 10_000)

    fuzzing.signal.signal(fuzzing.signal.SIGPROF, fuzzing._raise_slow_error)
    monkeypatch.setattr(fuzzing, "SECONDS", 0.2)
    expected_faults = {
        raise_key_error: "KeyError: 'x'",
        loop_forever: "took more than 0.2 s",
        raise_long_error: "says 10000 characters",
    }
    for read, message in expected_faults.items():
        monkeypatch.setitem(fuzzing.READ, "models", read)
        description, fault, _ = fuzzing.run_case("models", 0, 0, tmp_path)
        assert (description, message in fault) == ("file", True)
