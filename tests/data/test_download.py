import threading
from functools import partial

import pytest

from tests.data.files import Web, make_spec, packed, serve, values, write_csv
from tests.support import message
from toa._limits import DownloadLimits
from toa.data import ChecksumError, files

# bytes since the last full piece are lost when a connection breaks
fetch = partial(files.fetch, limits=DownloadLimits(piece_bytes=100))


@pytest.fixture
def true_file(home):
    return write_csv(home / "server/small.csv", values())


@pytest.fixture
def web(true_file):
    with serve(Web(true_file.read_bytes())) as web:
        yield web


@pytest.fixture
def spec(web, true_file):
    return make_spec(true_file, url=web.url)


def part(home):
    return home / "data/small/small.csv.part"


def test_a_download_is_complete_and_leaves_no_part(home, web, spec):
    path = fetch(spec, home / "data")
    assert path == home / "data/small/small.csv"
    assert path.read_bytes() == web.content
    assert [p.name for p in path.parent.iterdir()] == ["small.csv"]


def test_progress_ends_at_the_size_of_the_file(home, web, spec):
    seen = []
    fetch(spec, home / "data", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(web.content), len(web.content))


def test_an_existing_file_is_not_fetched_again(home, web, spec):
    fetch(spec, home / "data")
    packed(fetch(spec, home / "data"))
    assert fetch(spec, home / "data").name == "small.csv.gz"
    assert len(web.asked) == 1


def test_without_a_folder_the_variable_and_then_the_cache_take_it(home, web, spec, monkeypatch):
    assert fetch(spec) == home / "cache/toa/small/small.csv"
    monkeypatch.setenv("TOA_DATA", str(home / "variable"))
    assert fetch(spec) == home / "variable/small/small.csv"


def test_a_broken_connection_is_resumed_at_once(home, web, spec):
    web.drops = [1000, 500]
    seen = []
    path = fetch(spec, home / "data", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == web.content
    assert web.asked == [None, "bytes=1000-", "bytes=1500-"]
    assert seen[-1] == (len(web.content), len(web.content))


def test_an_interrupted_download_resumes_at_the_next_call(home, web, spec):
    web.drops = [1000]
    with pytest.raises(ConnectionError, match=message("'Small'", web.url, "1000 bytes are kept", spec.source)):
        fetch(spec, home / "data", attempts=1)
    assert part(home).read_bytes() == web.content[:1000]
    assert not (home / "data/small/small.csv").exists()
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert web.asked == [None, "bytes=1000-"]
    assert not part(home).exists()


def test_a_server_without_ranges_is_asked_again_from_the_start(home, web, spec):
    web.ranges = False
    web.drops = [1000]
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert web.asked == [None, "bytes=1000-"]


@pytest.mark.parametrize("extra", [0, 7])
def test_a_part_as_long_as_the_file_or_longer_is_thrown_away(home, web, spec, extra):
    part(home).parent.mkdir(parents=True)
    part(home).write_bytes(b"x" * (len(web.content) + extra))
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert web.asked[1:] == [None]


def test_a_server_that_answers_another_range_is_asked_again_from_the_start(home, web, spec):
    web.shift = 3
    web.drops = [1000]
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert web.asked == [None, "bytes=1000-", None]


def test_wrong_bytes_are_rejected_and_deleted(home, web, spec):
    true = web.content
    web.content = b"x" * len(web.content)
    with pytest.raises(ChecksumError, match=message("'Small' must have sha256", spec.sha256, web.url, spec.source)):
        fetch(spec, home / "data")
    assert list((home / "data/small").iterdir()) == []
    web.content = true
    assert fetch(spec, home / "data").read_bytes() == true


def test_a_wrong_part_is_rejected_once_and_then_fetched_again(home, web, spec):
    part(home).parent.mkdir(parents=True)
    part(home).write_bytes(b"x" * 1000)
    with pytest.raises(ChecksumError):
        fetch(spec, home / "data")
    assert fetch(spec, home / "data").read_bytes() == web.content


def test_a_wrong_file_in_the_place_is_replaced(home, web, spec):
    write_csv(home / "data/small/small.csv", values(seed=1))
    assert fetch(spec, home / "data").read_bytes() == web.content


def test_a_missing_page_raises_without_another_attempt(home, web, spec):
    web.status = 404
    with pytest.raises(ConnectionError, match=message("'Small'", web.url, "404", spec.source)):
        fetch(spec, home / "data")
    assert len(web.asked) == 1


def test_no_server_raises_after_the_last_attempt(home, true_file):
    with serve(Web(b"")) as gone:
        pass
    with pytest.raises(ConnectionError, match=message("'Small'", gone.url)):
        fetch(make_spec(true_file, url=gone.url), home / "data", attempts=2)


def test_without_a_known_hash_the_shape_is_the_check(home, web):
    spec = make_spec(url=web.url)
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert len(web.asked) == 1
    web.content = b"<html>please log in</html>"
    write_csv(home / "data/small/small.csv", values(rows=5))
    with pytest.raises(ValueError, match=r"small\.csv"):
        fetch(spec, home / "data")
    assert list((home / "data/small").iterdir()) == []


def test_without_a_url_the_source_and_the_place_are_named(home):
    with pytest.raises(ValueError, match=message("'Small'", "https://example.org/small", "small/small.csv")):
        fetch(make_spec(), home)


def test_concurrent_downloads_wait_for_one(home, web, spec):
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetch(spec, home / "data"))) for _ in range(14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [home / "data/small/small.csv"] * 14
    assert found[0].read_bytes() == web.content
    assert len(web.asked) == 1
    assert [p.name for p in found[0].parent.iterdir()] == ["small.csv"]


def test_a_download_that_ends_before_the_lock_is_not_repeated(home, web, spec, monkeypatch):
    held = files._held

    def late(part):
        monkeypatch.setattr(files, "_held", held)
        fetch(spec, home / "data")  # another process, between the look and the lock
        return held(part)

    monkeypatch.setattr(files, "_held", late)
    assert fetch(spec, home / "data").read_bytes() == web.content
    assert len(web.asked) == 1


def test_a_download_is_bounded_in_size_and_time(home, web, spec):
    with pytest.raises(ConnectionError, match="at most 500 bytes"):
        fetch(spec, home / "data", limits=DownloadLimits(total_bytes=500, piece_bytes=100))
    assert not part(home).exists()
    with pytest.raises(ConnectionError, match="it must take at most"):
        fetch(spec, home / "data", limits=DownloadLimits(seconds=-1.0, piece_bytes=100))
