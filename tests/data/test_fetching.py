"""Downloads from a real server on this machine: whole, damaged, absent."""

import functools
import hashlib
import http.server
import threading
import zipfile

import pytest

from arht.data.files import File, fetch
from arht.errors import InputError


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder, and the address under which it is served."""
    monkeypatch.delenv("ARHT_OFFLINE", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "served"
    place.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=place)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield place, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_a_file_is_fetched_once(served, tmp_path):
    place, address = served
    (place / "x.bin").write_bytes(b"pictures")
    file = File("x.bin", "page", address + "x.bin", md5(place / "x.bin"))
    found = fetch("set", tmp_path / "root", ["a", "."], file)
    assert found == tmp_path / "root" / "a" / "x.bin"
    assert found.read_bytes() == b"pictures"
    (place / "x.bin").unlink()
    assert fetch("set", tmp_path / "root", ["a", "."], file) == found


def test_an_archive_is_unpacked_without_its_folder(served, tmp_path):
    place, address = served
    with zipfile.ZipFile(place / "all.zip", "w") as archive:
        archive.writestr("a/x.bin", b"one")
        archive.writestr("a/part/y.bin", b"two")
    files = [File(name, "page", address + "all.zip", md5(place / "all.zip")) for name in ("x.bin", "part")]
    assert fetch("set", tmp_path / "root", ["a"], files[0]).read_bytes() == b"one"
    assert (fetch("set", tmp_path / "root", ["a"], files[1]) / "y.bin").read_bytes() == b"two"
    assert sorted(path.name for path in (tmp_path / "root" / "a").iterdir()) == ["part", "x.bin"]


def test_a_wrong_checksum_leaves_nothing(served, tmp_path):
    place, address = served
    (place / "x.bin").write_bytes(b"other pictures")
    with pytest.raises(InputError) as caught:
        fetch("set", tmp_path / "root", ["a"], File("x.bin", "page", address + "x.bin", "0" * 32))
    line = str(caught.value)
    assert line.startswith(
        f"load: set needs x.bin in {tmp_path / 'root' / 'a'}; it is not there and could not be fetched ("
    )
    assert line.endswith(f"Get it from {address}x.bin, or name another folder with data_dir or ARHT_DATA.")
    assert "\n" not in line
    assert not list((tmp_path / "root" / "a").iterdir())


def test_an_address_without_the_file(served, tmp_path):
    _, address = served
    with pytest.raises(InputError, match=r"could not be fetched \(.*404.*\)\. Get it from "):
        fetch("set", tmp_path, ["a"], File("x.bin", "page", address + "x.bin", "0" * 32))


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.delenv("ARHT_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    file = File("x.bin", "page", "http://127.0.0.1:9/x.bin", "0" * 32)
    with pytest.raises(InputError, match=r"it is not there and could not be fetched \(no connection\)\. "):
        fetch("set", tmp_path, ["a"], file)
    monkeypatch.setenv("ARHT_OFFLINE", "1")
    with pytest.raises(InputError, match="it is not there and downloads are switched off"):
        fetch("set", tmp_path, ["a"], file)
