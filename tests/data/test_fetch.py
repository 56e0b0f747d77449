import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedtrees.core.errors import DataError, UsageError
from fedtrees.data.downloads import SOURCES, Source, fetch

BODY = b"a,y\n" + b"1,0\n2,1\n" * 5000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/absent":
            self.send_error(404)
            return
        self.send_response(200)
        body = b"other" if self.path == "/other" else BODY
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1000] if self.path == "/cut" else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    source = Source("toy.csv", hashlib.sha256(BODY).hexdigest(), None, "the toy shop")
    monkeypatch.setitem(SOURCES, "toy", source)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_a_valid_file_is_complete_and_not_fetched_twice(server, tmp_path):
    folder = tmp_path / "new" / "folder"
    path = fetch("toy", folder, f"{server}/good")
    assert path.read_bytes() == BODY
    assert fetch("toy", folder, f"{server}/absent") == path


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/absent", "the server answered 404"),
        ("/cut", "cut short"),
        ("/other", r"sha256 is \w{64}, expected \w{64}; the file was not kept"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(server, tmp_path, address, message):
    with pytest.raises(DataError, match=message):
        fetch("toy", tmp_path, server + address)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_download_keeps_the_file_that_was_there(server, tmp_path):
    (tmp_path / "toy.csv").write_bytes(b"old")
    with pytest.raises(DataError):
        fetch("toy", tmp_path, f"{server}/other")
    assert (tmp_path / "toy.csv").read_bytes() == b"old"
    fetch("toy", tmp_path, f"{server}/good")
    assert (tmp_path / "toy.csv").read_bytes() == BODY


def test_no_server_no_address_and_no_such_name(server, tmp_path):
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch("toy", tmp_path, "http://127.0.0.1:9/good")
    with pytest.raises(DataError, match=r"no public address is known.*the toy shop"):
        fetch("toy", tmp_path)
    with pytest.raises(UsageError, match="did you mean 'toy'"):
        fetch("toyy", tmp_path)
    with pytest.raises(UsageError, match="not an address"):
        fetch("toy", tmp_path, "ftp://127.0.0.1/good")


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        fetch("toy", tmp_path / "file", f"{server}/good")
