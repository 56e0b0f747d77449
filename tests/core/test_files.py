"""Files that appear whole or not at all, and a list that knows what they were."""

import os
import shutil
import subprocess
import sys

import pytest

import fedtrees.core.files as files
from fedtrees.core.errors import DataError, StoreError
from fedtrees.core.files import parse_json, read_listed, write_listed, write_whole


def test_a_writer_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_whole(path, b"old")

    def half(out):
        out.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"a: No space left on device; buy a disk"):
        write_whole(path, half, error=DataError, remedy="buy a disk")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_is_listed_is_read_and_what_was_changed_is_not(tmp_path):
    for content in (b"one", b"two"):
        write_listed(tmp_path, "a", content)
        write_listed(tmp_path, "b", b"beside")
        assert read_listed(tmp_path, "a") == content
    (tmp_path / "a").write_bytes(b"one")  # what it was before is not what it is
    with pytest.raises(StoreError, match=r"a' was changed after it was written.*--resume"):
        read_listed(tmp_path, "a")
    assert read_listed(tmp_path, "b") == b"beside"


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum on PATH")
def test_the_list_is_what_sha256sum_reads(tmp_path):
    write_listed(tmp_path, "a", b"one")
    write_listed(tmp_path, "b", b"two")
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "LC_ALL": "C"},  # "OK" in English
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == ["a: OK", "b: OK"]


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_between_two_writes_leaves_a_file_that_is_listed(tmp_path, monkeypatch, writes):
    write_listed(tmp_path, "a", b"old")
    real, left = os.replace, [None] * writes

    def replace(*names):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        real(*names)

    with monkeypatch.context() as context:
        context.setattr(files.os, "replace", replace)
        if writes < 3:
            with pytest.raises(KeyboardInterrupt):
                write_listed(tmp_path, "a", b"new")
        else:
            write_listed(tmp_path, "a", b"new")
    assert read_listed(tmp_path, "a") == (b"old" if writes < 2 else b"new")
    write_listed(tmp_path, "a", b"newest")
    assert (tmp_path / "SHA256SUMS").read_bytes().count(b"\n") == 1


WRITER = """
import sys
from pathlib import Path
from fedtrees.core.files import write_listed
for i in range(60):
    write_listed(Path(sys.argv[1]), "a", f"{sys.argv[2]} {i}".encode())
"""


def test_a_reader_beside_two_writers_never_finds_a_file_that_is_not_listed(tmp_path):
    write_listed(tmp_path, "a", b"first")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "xy"
    ]
    seen = set()
    while any(w.poll() is None for w in writers):
        seen.add(read_listed(tmp_path, "a"))
    assert [w.returncode for w in writers] == [0, 0]
    assert len(seen) > 1
    assert read_listed(tmp_path, "a") in (b"x 59", b"y 59")
    assert (tmp_path / "SHA256SUMS").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "too deep"),
        ("[{", "line 1"),
        ("9" * 9000, "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_json_that_cannot_be_read_is_the_caller_s_error(text, said):
    with pytest.raises(DataError, match=f"x.json.*{said}"):
        parse_json(text, "x.json", DataError)
