"""Every anomaly-detection set of the benchmarks as an AnomalySpec, and the 28 machines of SMD one by one."""

from toa._registry import Registry
from toa.data.anomaly_spec import AnomalyFiles, AnomalySpec
from toa.data.spec import FileSpec

ANOMALY_SETS: Registry[AnomalySpec] = Registry("anomaly set")

_PACK = "ready-made in the data pack that the README of github.com/thuml/Time-Series-Library links to"
_TELEMETRY = "https://github.com/khundman/telemanom"
_MACHINES = "https://github.com/NetManAIOps/OmniAnomaly"
_MACHINES_RAW = "https://raw.githubusercontent.com/NetManAIOps/OmniAnomaly/master/ServerMachineDataset"

# of each machine: train rows, test rows, test steps labelled anomalous
_SMD = {
    "1-1": (28479, 28479, 2694),
    "1-2": (23694, 23694, 542),
    "1-3": (23702, 23703, 817),
    "1-4": (23706, 23707, 720),
    "1-5": (23705, 23706, 100),
    "1-6": (23688, 23689, 3708),
    "1-7": (23697, 23697, 2398),
    "1-8": (23698, 23699, 763),
    "2-1": (23693, 23694, 1170),
    "2-2": (23699, 23700, 2833),
    "2-3": (23688, 23689, 269),
    "2-4": (23689, 23689, 1694),
    "2-5": (23688, 23689, 980),
    "2-6": (28743, 28743, 424),
    "2-7": (23696, 23696, 417),
    "2-8": (23702, 23703, 161),
    "2-9": (28722, 28722, 1755),
    "3-1": (28700, 28700, 308),
    "3-2": (23702, 23703, 1109),
    "3-3": (23703, 23703, 632),
    "3-4": (23687, 23687, 977),
    "3-5": (23690, 23691, 426),
    "3-6": (28726, 28726, 1194),
    "3-7": (28705, 28705, 434),
    "3-8": (28703, 28704, 1371),
    "3-9": (28713, 28713, 303),
    "3-10": (23692, 23693, 1047),
    "3-11": (28695, 28696, 198),
}
# of the arrays of two machines: train, test, labels
_SMD_SHA256 = {
    "1-6": (
        "56d079b77dd6155cc8bc18cfb3a23c1c3ae3cfbddc204978a2faa5b5402c8f34",
        "6c3c6cefb6d5c3985b48ddee542beb2d28947581555ef38c46464499570f2faa",
        "6d20c49bb8ba97843af87dbdde5b28132bbdc1d84451fd90a2fd8d28c91c3782",
    ),
    "2-1": (
        "f3d10d6534c504562c2eabc4f2c70084a0ad57189755dbd41bd1cb54ebd1efa5",
        "61735d7cfdcb5b0aa4373f0bf5860e2b4ff825b8bcb24025e5159206431bcf73",
        "5ee0a155c662179c8c0cac430f0597eac82e84262fcd6c21de176e69223271bb",
    ),
}


def _arrays(
    name: str, stem: str, source: str, note: str, sha256: tuple[str | None, str | None, str | None] = (None, None, None)
) -> AnomalyFiles:
    """The layout of the field's data packs: STEM_train.npy, STEM_test.npy, STEM_test_label.npy."""
    train, test, labels = (
        FileSpec(name=name, path=f"{stem}_{part}.npy", source=source, note=note, sha256=known)
        for part, known in zip(("train", "test", "test_label"), sha256, strict=True)
    )
    return AnomalyFiles(train=train, test=test, labels=labels)


def _enter(spec: AnomalySpec) -> None:
    ANOMALY_SETS.register(spec.name)(spec)


def _enter_machine(machine: str) -> None:
    name = f"SMD-machine-{machine}"
    train_rows, test_rows, anomalous = _SMD[machine]
    train, test, labels = (
        FileSpec(
            name=name,
            path=f"ServerMachineDataset/{part}/machine-{machine}.txt",
            source=_MACHINES,
            url=f"{_MACHINES_RAW}/{part}/machine-{machine}.txt",
        )
        for part in ("train", "test", "test_label")
    )
    known = _SMD_SHA256.get(machine, (None, None, None))
    _enter(
        AnomalySpec(
            name=name,
            train_rows=train_rows,
            test_rows=test_rows,
            channels=38,
            label_ratio=round(anomalous / test_rows, 4),
            licence="MIT",
            source=_MACHINES,
            layouts=(
                _arrays(name, f"SMD/machine-{machine}", _MACHINES, "float32 arrays of the text files", known),
                AnomalyFiles(train=train, test=test, labels=labels),
            ),
            subset_of="SMD",
            note="one machine of 28: results on it cannot be set against published ones on all",
        )
    )


def _psm_file(name: str) -> FileSpec:
    return FileSpec(name="PSM", path=f"PSM/{name}.csv", source="https://github.com/eBay/RANSynCoders", note=_PACK)


_enter(
    AnomalySpec(
        name="PSM",
        train_rows=132481,
        test_rows=87841,
        channels=25,
        label_ratio=round(24381 / 87841, 4),
        licence="CC BY 4.0",
        source="https://github.com/eBay/RANSynCoders",
        layouts=(AnomalyFiles(train=_psm_file("train"), test=_psm_file("test"), labels=_psm_file("test_label")),),
        index_column=True,
        fill="zero",
        note="missing values of train are zeros before scaling, as everywhere in the field",
    )
)
_enter(
    AnomalySpec(
        name="MSL",
        train_rows=58317,
        test_rows=73729,
        channels=55,
        label_ratio=round(7766 / 73729, 4),
        licence="not stated",
        source=_TELEMETRY,
        layouts=(
            _arrays(
                "MSL",
                "MSL/MSL",
                _TELEMETRY,
                f"{_PACK}; 27 telemetry channels one after another, each with its commands",
                (
                    "10e5f218294cfb6c6a4411d5af0b1c4f8a2a8b429ccce00dcbdfa1b1a9587c3f",
                    "4f5a626418f597029eee8e691f2f2895ae21dd9d98a93c3dc1b8781297b1ce6e",
                    "23e120c30a645000f093ff5311de177601b8220ba3ca4281c6376883444f7b97",
                ),
            ),
        ),
        note="the checksums are those of a float32 copy; the float64 one of the data pack differs by rounding",
    )
)
_enter(
    AnomalySpec(
        name="SMAP",
        train_rows=135183,
        test_rows=427617,
        channels=25,
        label_ratio=0.1279,
        licence="not stated",
        source=_TELEMETRY,
        layouts=(_arrays("SMAP", "SMAP/SMAP", _TELEMETRY, _PACK),),
    )
)
_enter(
    AnomalySpec(
        name="SMD",
        train_rows=sum(train for train, _, _ in _SMD.values()),
        test_rows=sum(test for _, test, _ in _SMD.values()),
        channels=38,
        label_ratio=round(sum(count for _, _, count in _SMD.values()) / sum(test for _, test, _ in _SMD.values()), 4),
        licence="MIT",
        source=_MACHINES,
        layouts=(_arrays("SMD", "SMD/SMD", _MACHINES, _PACK),),
        note="28 machines one after another",
    )
)
_enter(
    AnomalySpec(
        name="SWaT",
        train_rows=495000,
        test_rows=449919,
        channels=51,
        label_ratio=0.1214,
        licence="on request",
        source="https://itrust.sutd.edu.sg/itrust-labs_datasets/",
        layouts=(
            AnomalyFiles(
                train=FileSpec(name="SWaT", path="SWaT/swat_train2.csv", source="https://itrust.sutd.edu.sg"),
                test=FileSpec(name="SWaT", path="SWaT/swat2.csv", source="https://itrust.sutd.edu.sg"),
                labels=None,
            ),
        ),
        note="not to be passed on; the last column of both files is the label",
    )
)
for _machine in _SMD:
    _enter_machine(_machine)
