"""The file of a capture: what was written is read, whatever happened to the writer."""

import queue
import socket
import stat
import threading

import numpy as np
import pytest

from fedtrees.capture.formats import record
from fedtrees.capture.records import MOST_BYTES, Capture, Run, Writer
from fedtrees.core.errors import DataError, UsageError
from fedtrees.messages.captured import LabelShare, WireBytes

RUN = Run("xgboost", "3.2.0", "", "now", {"host": "127.0.0.1"})


def written(path, n=3, run=RUN):
    with Writer(path, run) as out:
        for k in range(n):
            out.write(LabelShare(k, 0.5), "a", ("b", "c"), "because")
    return path


def test_messages_come_back_with_where_they_are_from(tmp_path):
    capture = Capture(written(tmp_path / "a.capture"))
    assert capture.run_facts == RUN
    found = list(capture)
    assert [(r.order, r.sender, r.receivers, r.message.rows, r.why) for r in found] == [
        (k, "a", ("b", "c"), k, "because") for k in range(3)
    ]
    assert not capture.cut


def test_nobody_else_may_read_it(tmp_path):
    assert stat.S_IMODE(written(tmp_path / "a.capture").stat().st_mode) == 0o600


def test_a_kill_at_any_byte_loses_the_last_message_at_most(tmp_path):
    path = written(tmp_path / "a.capture")
    whole, two = path.read_bytes(), written(tmp_path / "b.capture", 2).stat().st_size
    for size in range(two, len(whole)):
        path.write_bytes(whole[:size])
        capture = Capture(path)
        assert len(list(capture)) == 2
        assert capture.cut == size - two


def test_a_message_is_on_disk_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "a.capture"
    out = Writer(path, Run("xgboost"))
    out.write(WireBytes(0, "tracker", True, np.arange(3, dtype=np.uint8)))
    assert [r.message.data.tolist() for r in Capture(path)] == [[0, 1, 2]]
    out.close()


def test_what_is_garbled_is_told_with_its_place(tmp_path):
    path = written(tmp_path / "a.capture")
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)
    with pytest.raises(DataError, match=r"garbled at byte \d+: its checksum is another"):
        Capture(path)
    keep = written(tmp_path / "b.capture", 2).stat().st_size
    with pytest.raises(DataError, match=f"`head -c {keep}` keeps them"):
        Capture(path)
    blob[keep : keep + 4] = (MOST_BYTES + 1).to_bytes(4, "little")
    path.write_bytes(blob)
    with pytest.raises(DataError, match="a frame of 67,108,865 bytes"):
        Capture(path)


def test_other_versions_and_other_files_are_named(tmp_path):
    path = written(tmp_path / "a.capture")
    path.write_bytes(b"FTCAP09\n" + path.read_bytes()[8:])
    with pytest.raises(DataError, match="a capture of version 09; this release reads 1"):
        Capture(path)
    with pytest.raises(DataError, match="version 09"):
        Writer(path, Run("xgboost"))
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(DataError, match="is no capture"):
        Capture(path)
    path.write_bytes(b"FTCAP01\n")
    with pytest.raises(DataError, match="cut off before its first run"):
        Capture(path)
    with pytest.raises(DataError, match="cannot read"):
        Capture(tmp_path / "none")


def test_of_two_runs_in_one_file_one_is_named(tmp_path):
    path = written(written(tmp_path / "a.capture", 3), 2, Run("lightgbm", "4.7.0"))
    with pytest.raises(UsageError, match=r"contains 2 runs \(0: xgboost now, 1: lightgbm"):
        Capture(path)
    assert [len(list(Capture(path, k))) for k in (0, 1)] == [3, 2]
    with pytest.raises(UsageError, match="--run 2"):
        Capture(path, 2)


def test_recording_ends_if_the_first_bytes_cannot_be_written(tmp_path, monkeypatch):
    """A full disk must not leave the relay waiting for bytes."""

    def full(writer, message):
        raise DataError("no space left")

    monkeypatch.setattr(Writer, "write", full)
    ended = []

    def recorded(server, ports):
        try:
            record("xgboost", [server], tmp_path / "a.capture", ready=ports.put)
        except DataError as err:
            ended.append(str(err))

    ports = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=recorded, args=(server.getsockname(), ports), daemon=True)
        thread.start()
        with socket.create_connection(("127.0.0.1", ports.get(timeout=10)[0])) as party:
            party.sendall(b"first")
            party.shutdown(socket.SHUT_WR)
            server.accept()[0].close()
        thread.join(timeout=10)
    assert ended == ["no space left"]
