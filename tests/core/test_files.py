"""Files are written completely or not at all, and a list contains their checksums."""

import os
import shutil
import subprocess
import sys

import pytest

import fedtrees.core.files as files
from fedtrees.core.errors import DataError, StoreError
from fedtrees.core.files import parse_json, read_listed, write_listed, write_whole


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_whole(path, b"old")

    def write_half(file):
        file.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"a: No space left on device; buy a disk"):
        write_whole(path, write_half, error=DataError, remedy="buy a disk")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_listed_file_is_read_unless_it_was_changed(tmp_path):
    for content in (b"one", b"two"):
        write_listed(tmp_path, "a", content)
        write_listed(tmp_path, "b", b"beside")
        assert read_listed(tmp_path, "a") == content
    # An earlier version of the file is refused, too.
    (tmp_path / "a").write_bytes(b"one")
    with pytest.raises(StoreError, match=r"a' was changed after it was written.*--resume"):
        read_listed(tmp_path, "a")
    assert read_listed(tmp_path, "b") == b"beside"


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum on PATH")
def test_the_list_is_what_sha256sum_reads(tmp_path):
    write_listed(tmp_path, "a", b"one")
    write_listed(tmp_path, "b", b"two")
    process = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "LC_ALL": "C"},  # "OK" in English
    )  # fmt: skip
    assert sorted(process.stdout.splitlines()) == ["a: OK", "b: OK"]


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_between_two_writes_leaves_a_listed_file(tmp_path, monkeypatch, writes):
    write_listed(tmp_path, "a", b"old")
    original, writes_left = os.replace, [None] * writes

    def replace(*names):
        if not writes_left:
            raise KeyboardInterrupt
        writes_left.pop()
        original(*names)

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


def test_a_reader_never_sees_an_unlisted_file_while_two_processes_write(tmp_path):
    write_listed(tmp_path, "a", b"first")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "xy"
    ]
    contents = set()
    while any(writer.poll() is None for writer in writers):
        contents.add(read_listed(tmp_path, "a"))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(contents) > 1
    assert read_listed(tmp_path, "a") in (b"x 59", b"y 59")
    assert (tmp_path / "SHA256SUMS").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "too deep"),
        ("[{", "line 1"),
        ("9" * 9000, "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_json_that_cannot_be_read_raises_the_error_of_the_caller(text, reason):
    with pytest.raises(DataError, match=f"x.json.*{reason}"):
        parse_json(text, "x.json", DataError)
