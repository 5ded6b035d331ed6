"""Sets of anomaly detection in the parts that a user would fit a detector to: a machine, a channel, a file.

    for part in read_parts("MSL", None):    # 27 channels, each with its own train and test rows
        part.train, part.test, part.labels

The files of MSL and SMAP hold channels of two spacecraft, joined one after another: telemetry of another sensor in the
first column of each, and commands in the other columns. Each channel has train and test rows of its own.
`joined MSL` reads all channels as one table, as many papers do.

Alphabet: T rows, C columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from toa._checks import ArgumentError, check_choice
from toa.data import ANOMALY_SETS, load_anomaly, locate_anomaly
from toa.data.files import data_folders

MACHINES = ("SMD-machine-1-6", "SMD-machine-2-1")
# sets whose channels are joined in one file; a table beside it has the rows of each
OF_CHANNELS = ("MSL", "SMAP")
SKAB = "SKAB"
# beginning of the name of a set of channels that is read as one table
JOINED = "joined "
# ending of the name of a set whose level changes after the fit
SHIFTED = " shifted"
SETS = (
    *MACHINES,
    *OF_CHANNELS,
    SKAB,
    *(f"{JOINED}{name}" for name in OF_CHANNELS),
    *(f"{name}{SHIFTED}" for name in MACHINES),
)
# channels of the shift
SHIFTED_CHANNELS = 3
# size of the shift in standard deviations of the train rows
SHIFT = 10.0
# smallest standard deviation of a channel that is shifted
LEAST_DEVIATION = 1e-6
# rows of a file of SKAB that a detector is fitted to, as its authors do
SKAB_TRAIN = 400
# columns of SKAB that are no sensors
SKAB_LABELS = ("datetime", "anomaly", "changepoint")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Rows to fit to, rows to flag, and which of these are anomalies."""

    name: str
    train: Float64[np.ndarray, "_ c"]
    test: Float64[np.ndarray, "t c"]
    labels: Bool[np.ndarray, " t"]


def read_parts(name: str, data_dir: str | Path | None) -> Iterator[Part]:
    """The parts of a set of `SETS`; `data_dir` is the first folder to search."""
    check_choice("dataset", name, SETS)
    if name == SKAB:
        return _files_of_skab(data_dir)
    whole = _whole(name.removeprefix(JOINED).removesuffix(SHIFTED), data_dir)
    if name.endswith(SHIFTED):
        whole.test[:, :] = _shift(whole)
    return _channels(whole, data_dir) if name in OF_CHANNELS else iter([whole])


def _whole(name: str, data_dir: str | Path | None) -> Part:
    """A set of the catalogue as one table."""
    data = load_anomaly(name, length=1, data_dir=data_dir, allow_constant=True)
    train = data.train.numpy().astype(np.float64)
    return Part(name=name, train=train, test=data.test.numpy().astype(np.float64), labels=data.labels)


def _shift(part: Part) -> Float64[np.ndarray, "t c"]:
    """The test rows with another level in some channels."""
    deviation = part.train.std(0)
    varying = np.flatnonzero(deviation > LEAST_DEVIATION)
    channels = np.random.default_rng(SHIFTED_CHANNELS).choice(varying, SHIFTED_CHANNELS, replace=False)
    test = part.test.copy()
    test[:, channels] += SHIFT * deviation[channels]
    return test


def _channels(whole: Part, data_dir: str | Path | None) -> Iterator[Part]:
    """The channels of a set that are joined in one table."""
    folder = locate_anomaly(ANOMALY_SETS[whole.name], data_dir)[1][0].parent
    for row in pd.read_csv(folder / "channels.csv").to_dict("records"):
        train = slice(row["train_start"], row["train_start"] + row["train_rows"])
        test = slice(row["test_start"], row["test_start"] + row["test_rows"])
        yield Part(
            name=f"{whole.name} {row['channel']}",
            train=whole.train[train],
            test=whole.test[test],
            labels=whole.labels[test],
        )


def _files_of_skab(data_dir: str | Path | None) -> Iterator[Part]:
    """The files of SKAB with labels, each fitted to its first rows."""
    folders = [folder / SKAB for folder in data_folders(data_dir)]
    found = [sorted(folder.glob("*.csv.gz")) for folder in folders]
    paths = [path for path in next(filter(None, found), []) if not path.name.startswith("anomaly-free")]
    if not paths:
        shown = ", ".join(map(str, folders))
        raise ArgumentError("data_dir", f"name a folder with {SKAB} and its files *.csv.gz", f"none in {shown}")
    for path in paths:
        table = pd.read_csv(path, sep=";")
        labels = table["anomaly"].to_numpy().astype(bool)
        values = table.drop(columns=[column for column in SKAB_LABELS if column in table]).to_numpy(np.float64)
        yield Part(
            name=path.name.removesuffix(".csv.gz"),
            train=values[:SKAB_TRAIN],
            test=values[SKAB_TRAIN:],
            labels=labels[SKAB_TRAIN:],
        )
