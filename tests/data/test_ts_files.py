import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.support import message
from toa.data import read_ts

HEADER = "#about\n@problemName toy\n@univariate false\n@equalLength {equal}\n@classLabel true a b\n@data\n"
# header of cases of one length
EQUAL = HEADER.format(equal="true")
# header of cases of several lengths
UNEQUAL = HEADER.format(equal="false")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["x_TRAIN.ts", "x_TRAIN.ts.gz"])
def test_cases_have_shape_steps_by_channels_with_nan_for_missing_values(tmp_path, name):
    read = read_ts(write(tmp_path / name, UNEQUAL + "1,2,3:4,5,6:a\n7,?:8,9:B\n"))
    assert read.labels is not None
    # labels stay as they are written
    assert read.labels.tolist() == ["a", "B"]
    assert (len(read), read.columns, read.lengths) == (2, ("0", "1"), (3, 2))
    assert read.values[0].tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert read.values[1][0].tolist() == [7.0, 8.0]
    assert np.isnan(read.values[1][1, 0])


def test_channels_of_different_lengths_are_missing_at_the_end(tmp_path):
    read = read_ts(write(tmp_path / "x_TRAIN.ts", UNEQUAL + "1,2,3:4,5:a\n6:7,8:b\n"))
    np.testing.assert_array_equal(read.values[0], [[1.0, 4.0], [2.0, 5.0], [3.0, np.nan]])
    np.testing.assert_array_equal(read.values[1], [[6.0, 7.0], [np.nan, 8.0]])


BAD = [
    ("", "must hold a header and cases, got an empty file; is the download complete?"),
    ("\n\n", "must hold a header and cases, got an empty file"),
    ("<html>nothing here</html>\n", "must begin with @ lines", "got '<html>nothing here</html>'"),
    ("@problemName x\n@classLabel true a b\n", "must have a line @data between header and cases, got none"),
    ("@problemName x\n1,2:a\n", "got '1,2:a' in line 2; is it a .ts file?"),
    ("@classLabel false\n@data\n1,2\n", "must name its classes", "got 'false'; only files for classification"),
    ("@problemName x\n@data\n1,2:a\n", "must name its classes", "got 'no such line'"),
    (
        "@timestamps true\n@classLabel true a b\n@data\n(1,2):a\n",
        "without time stamps",
        "'true'; remove the time stamps",
    ),
    ("@classLabel true\n@data\n1,2:a\n", "must name its classes", "got 'true'"),
    ("@equalLength\n@classLabel true a b\n@data\n1:a\n", "true or false after @equalLength, got ''; write one of them"),
    (EQUAL, "must hold cases below @data, got none; is the file complete?"),
    (EQUAL + "1,2:3,4:a\n1,2:b\n", "the same number of channels in each case, 2 in the first, got 1 in case 2"),
    (EQUAL + "1,2:3,4:a\n1,2:3:b\n", "the same number of values in each channel, 2 in the first case", "in case 2"),
    (EQUAL + "1,2:3,x:a\n", "must hold numbers", "'x' in case 1"),
]


@pytest.mark.parametrize("case", BAD, ids=str)
def test_broken_files_are_rejected(tmp_path, case):
    text, *parts = case
    with pytest.raises(ValueError, match=message("x_TRAIN.ts", *parts)):
        read_ts(write(tmp_path / "x_TRAIN.ts", text))


def test_text_that_is_not_utf8_and_broken_gzip_are_rejected(tmp_path):
    path = tmp_path / "x_TRAIN.ts"
    path.write_bytes(b"@problemName \xff\n")
    with pytest.raises(ValueError, match=message("must be text in UTF-8")):
        read_ts(path)
    packed = tmp_path / "x_TRAIN.ts.gz"
    packed.write_bytes(gzip.compress((EQUAL + "1:2:a\n").encode())[:-9])
    with pytest.raises(ValueError, match=message("must be complete gzip data")):
        read_ts(packed)
