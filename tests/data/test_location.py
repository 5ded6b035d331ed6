import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.files import make_spec, packed, values, write_csv, write_text
from tests.support import message
from toa.data import ChecksumError, DatasetNotFoundError, checksum, data_folders, locate, verify

SPEC = make_spec()


def put(folder: Path) -> Path:
    return write_csv(folder / SPEC.path, values())


def test_the_given_folder_comes_before_the_variable_before_the_cache(home, monkeypatch):
    monkeypatch.setenv("TOA_DATA", str(home / "variable"))
    places = [put(home / "cache/toa"), put(home / "variable"), put(home / "given")]
    assert data_folders(home / "given") == [home / "given", home / "variable", home / "cache/toa"]
    for place in reversed(places):
        assert locate(SPEC, home / "given") == place
        place.unlink()
    with pytest.raises(DatasetNotFoundError):
        locate(SPEC, home / "given")


def test_a_gzipped_file_is_found_and_a_plain_one_comes_first(home):
    gz = packed(put(home))
    assert locate(SPEC, home) == gz
    assert locate(SPEC, home) != (plain := put(home))
    assert locate(SPEC, home) == plain


def test_an_empty_variable_is_an_unset_one(home, monkeypatch):
    monkeypatch.setenv("TOA_DATA", "")
    assert data_folders() == [home / "cache/toa"]


def test_a_missing_file_names_every_place_and_the_way_to_get_it(home, monkeypatch):
    monkeypatch.setenv("TOA_DATA", str(home / "variable"))
    places = [home / folder / "small/small.csv" for folder in ("given", "variable", "cache/toa")]
    with pytest.raises(FileNotFoundError, match=message("'Small'", *places, ".gz", "https://example.org/small")):
        locate(SPEC, home / "given")
    with pytest.raises(FileNotFoundError, match=message("run `toa data fetch Small`")):
        locate(make_spec(url="https://example.org/small.csv"), home)


def test_checksums_are_those_of_the_unpacked_content(home):
    path = put(home)
    known = hashlib.sha256(path.read_bytes()).hexdigest()
    assert checksum(path) == known
    assert checksum(packed(path)) == known


def test_a_changed_byte_fails_verification(home):
    path = put(home)
    spec = make_spec(path)
    assert verify(path, spec) == spec.sha256
    path.write_bytes(path.read_bytes()[:-2] + b"9\n")
    with pytest.raises(ChecksumError, match=message("'Small' must have sha256", spec.sha256, checksum(path), path)):
        verify(path, spec)


def test_a_changed_byte_fails_verification_by_the_id_in_git(home):
    path = home / "small.csv"
    path.write_bytes(b"hello\n")
    # as `git hash-object` prints it
    spec = replace(SPEC, git_id="ce013625030ba8dba906f756967f9e9ca394464a")
    assert verify(path, spec) == hashlib.sha256(b"hello\n").hexdigest()
    path.write_bytes(b"hellO\n")
    with pytest.raises(ChecksumError, match=message("'Small' must have git id", spec.git_id, path)):
        verify(path, spec)


def test_a_file_without_a_known_checksum_passes_with_its_own(home):
    path = put(home)
    assert verify(path, SPEC) == checksum(path)


@pytest.mark.parametrize("spoil", [lambda b: b[:-20], lambda b: b"junk" + b, lambda b: b[:20] + b"\xff" * 30 + b[50:]])
def test_broken_gzip_data_are_rejected(home, spoil):
    path = packed(put(home))
    write_text(path, spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=message(path, "must be complete gzip data", "get it again")):
        checksum(path)
