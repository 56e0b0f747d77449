"""The capture file: messages that were written can be read, even if the writer was killed."""

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


def write_messages(path, n_messages=3, run=RUN):
    with Writer(path, run) as writer:
        for number in range(n_messages):
            writer.write(LabelShare(number, 0.5), "a", ("b", "c"), "because")
    return path


def test_messages_are_read_with_their_sender_and_receivers(tmp_path):
    capture = Capture(write_messages(tmp_path / "a.capture"))
    assert capture.run_facts == RUN
    records = list(capture)
    assert [
        (record.order, record.sender, record.receivers, record.message.rows, record.why)
        for record in records
    ] == [(number, "a", ("b", "c"), number, "because") for number in range(3)]
    assert not capture.cut


def test_only_the_owner_may_read_the_file(tmp_path):
    assert stat.S_IMODE(write_messages(tmp_path / "a.capture").stat().st_mode) == 0o600


def test_a_kill_at_any_byte_loses_at_most_the_last_message(tmp_path):
    path = write_messages(tmp_path / "a.capture")
    complete, size_of_two = (
        path.read_bytes(),
        write_messages(tmp_path / "b.capture", 2).stat().st_size,
    )
    for size in range(size_of_two, len(complete)):
        path.write_bytes(complete[:size])
        capture = Capture(path)
        assert len(list(capture)) == 2
        assert capture.cut == size - size_of_two


def test_a_message_is_on_disk_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "a.capture"
    writer = Writer(path, Run("xgboost"))
    writer.write(WireBytes(0, "tracker", True, np.arange(3, dtype=np.uint8)))
    assert [record.message.data.tolist() for record in Capture(path)] == [[0, 1, 2]]
    writer.close()


def test_garbled_bytes_are_reported_with_their_position(tmp_path):
    path = write_messages(tmp_path / "a.capture")
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)
    with pytest.raises(DataError, match=r"garbled at byte \d+: its checksum is another"):
        Capture(path)
    valid_bytes = write_messages(tmp_path / "b.capture", 2).stat().st_size
    with pytest.raises(DataError, match=f"`head -c {valid_bytes}` keeps them"):
        Capture(path)
    blob[valid_bytes : valid_bytes + 4] = (MOST_BYTES + 1).to_bytes(4, "little")
    path.write_bytes(blob)
    with pytest.raises(DataError, match="a frame of 67,108,865 bytes"):
        Capture(path)


def test_other_versions_and_other_files_are_named(tmp_path):
    path = write_messages(tmp_path / "a.capture")
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
    path = write_messages(write_messages(tmp_path / "a.capture", 3), 2, Run("lightgbm", "4.7.0"))
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
