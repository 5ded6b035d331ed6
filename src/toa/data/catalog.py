"""Every forecasting data set of the benchmarks as a DatasetSpec, and the real subsets that circulate."""

from toa._registry import Registry
from toa.data.spec import DatasetSpec

DATASETS: Registry[DatasetSpec] = Registry("dataset")

_PACK = "ready-made in the data pack that the README of github.com/thuml/Time-Series-Library links to"
_PEMS_PACK = "ready-made in the data pack that the README of github.com/thuml/iTransformer links to"
_SUBSET = "a real, full-length part of the data set: results on it cannot be set against published ones"
_ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"
_PEMS = "https://pems.dot.ca.gov"
_UNSTATED = "not stated"


def _enter(spec: DatasetSpec) -> None:
    DATASETS.register(spec.name)(spec)


def _enter_ett(name: str, sha256: str | None) -> None:
    hourly = name.startswith("ETTh")
    _enter(
        DatasetSpec(
            name=name,
            path=f"ETT-small/{name}.csv",
            rows=17420 if hourly else 69680,
            channels=7,
            frequency="h" if hourly else "15min",
            split="ett-hour" if hourly else "ett-minute",
            reader="ett-csv",
            licence="CC BY-ND 4.0",
            source="https://github.com/zhouhaoyi/ETDataset",
            url=f"{_ETT}/{name}.csv",
            sha256=sha256,
            target="OT",
            note="the split leaves the last rows of the file unused",
        )
    )


def _enter_pems(name: str, rows: int, channels: int) -> None:
    _enter(
        DatasetSpec(
            name=name,
            path=f"PEMS/{name}.npz",
            rows=rows,
            channels=channels,
            frequency="5min",
            split="pems",
            reader="npz",
            licence=_UNSTATED,
            source=_PEMS,
            note=f"{_PEMS_PACK}; flow (feature 0) alone is used",
        )
    )


_enter(
    DatasetSpec(
        name="Weather",
        path="weather/weather.csv",
        rows=52696,
        channels=21,
        frequency="10min",
        split="ratio",
        reader="csv",
        licence=_UNSTATED,
        source="https://www.bgc-jena.mpg.de/wetter/",
        sha256="34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63",
        target="OT",
        # the standard file has the row of 2020-05-12 06:00 twice; dropping it would move every later window
        duplicate_dates=True,
        note=f"{_PACK}; the row of 2020-05-12 06:00 stands twice and -9999 marks missing values, as in every copy",
    )
)
_enter(
    DatasetSpec(
        name="Solar",
        path="Solar/solar_AL.txt",
        rows=52560,
        channels=137,
        frequency="10min",
        split="solar",
        reader="txt",
        licence=_UNSTATED,
        source="https://www.nrel.gov/grid/solar-power-data.html",
        note="gzipped in github.com/laiguokun/multivariate-time-series-data",
    )
)
_enter(
    DatasetSpec(
        name="ECL",
        path="electricity/electricity.csv",
        rows=26304,
        channels=321,
        frequency="h",
        split="ratio",
        reader="csv",
        licence="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/321/electricityloaddiagrams20112014",
        target="OT",
        note=_PACK,
    )
)
_enter_ett("ETTh1", "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066")
_enter_ett("ETTh2", "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b")
_enter_ett("ETTm1", "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e")
_enter_ett("ETTm2", None)
_enter(
    DatasetSpec(
        name="Exchange",
        path="exchange_rate/exchange_rate.csv",
        rows=7588,
        channels=8,
        frequency="D",
        split="ratio",
        reader="csv",
        licence=_UNSTATED,
        source="https://github.com/laiguokun/multivariate-time-series-data",
        sha256="d55e7aa2641009814a18ba3279431b13f6d413b0eab195b9ff21988d8cf94e97",
        target="OT",
        note=f"{_PACK}; its dates run on through weekends and were added to the undated original",
    )
)
_enter(
    DatasetSpec(
        name="Traffic",
        path="traffic/traffic.csv",
        rows=17544,
        channels=862,
        frequency="h",
        split="ratio",
        reader="csv",
        licence=_UNSTATED,
        source=_PEMS,
        target="OT",
        note=_PACK,
    )
)
_enter_pems("PEMS03", 26208, 358)
_enter_pems("PEMS04", 16992, 307)
_enter_pems("PEMS07", 28224, 883)
_enter_pems("PEMS08", 17856, 170)
_enter(
    DatasetSpec(
        name="ILI",
        path="illness/national_illness.csv",
        rows=966,
        channels=7,
        frequency="W",
        split="ratio",
        reader="csv",
        licence=_UNSTATED,
        source="https://gis.cdc.gov/grasp/fluview/fluportaldashboard.html",
        target="OT",
        note=_PACK,
    )
)
_enter(
    DatasetSpec(
        name="ECL-6ch",
        path="electricity/electricity_6ch.csv",
        rows=26304,
        channels=6,
        frequency="h",
        split="ratio",
        reader="csv",
        licence="CC BY 4.0",
        source="https://github.com/Lucasmhw/CONCORD",
        sha256="ccbdbd01b3038188f33772eb6121182eaf4cbbe4e2d803b63df94a39d8d200ce",
        subset_of="ECL",
        note=f"channels 0-5 of 321, {_SUBSET}",
    )
)
_enter(
    DatasetSpec(
        name="Traffic-6ch",
        path="traffic/traffic_6ch.csv",
        rows=17544,
        channels=6,
        frequency="h",
        split="ratio",
        reader="csv",
        licence=_UNSTATED,
        source="https://github.com/Lucasmhw/CONCORD",
        sha256="e13028520dc78d2c2c183cf95448a99a296442525eb04c2b2c15276a739a543d",
        subset_of="Traffic",
        note=f"channels 0-5 of 862, {_SUBSET}",
    )
)
_enter(
    DatasetSpec(
        name="Solar-12ch",
        path="Solar/solar_AL_12ch.csv",
        rows=52560,
        channels=12,
        frequency="10min",
        split="solar",
        reader="csv-undated",
        licence=_UNSTATED,
        source="https://github.com/Lucasmhw/CONCORD",
        sha256="6966d7eba10804e70a716bc1e37f6326a610776ed1b46a5f4ac61c9f8c7e706d",
        subset_of="Solar",
        note=f"12 of 137 plants, {_SUBSET}",
    )
)
