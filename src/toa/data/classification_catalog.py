"""The 28 multivariate sets of the UEA archive that the field reports on."""

from dataclasses import dataclass

from toa._checks import check_at_least
from toa._registry import Registry

SOURCE = "https://www.timeseriesclassification.com"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationSpec:
    """One set of the archive.

    Args:
        train: Cases to train on.
        test: Cases to test on.
        length: Steps of the longest case.
        channels: Channels of every case.
        classes: Classes of TRAIN.
        variable: Whether cases differ in length.
        verified: Whether the sizes were read from the files. Of the others, releases of the archive differ in cases
            or length, and only channels and classes are held to.
    """

    name: str
    train: int
    test: int
    length: int
    channels: int
    classes: int
    variable: bool = False
    verified: bool = False

    def __post_init__(self) -> None:
        for name in ("train", "test", "length", "channels"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("classes", self.classes, 2)

    def files(self) -> tuple[str, str]:
        """Places of TRAIN and TEST under a data folder."""
        return f"{self.name}/{self.name}_TRAIN.ts", f"{self.name}/{self.name}_TEST.ts"


CLASSIFICATION_SETS: Registry[ClassificationSpec] = Registry("classification dataset")

# name: train, test, length, channels, classes
_SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "ArticularyWordRecognition": (275, 300, 144, 9, 25),
    "AtrialFibrillation": (15, 15, 640, 2, 3),
    "BasicMotions": (40, 40, 100, 6, 4),
    "CharacterTrajectories": (1422, 1436, 182, 3, 20),
    "Cricket": (108, 72, 1197, 6, 12),
    "DuckDuckGeese": (50, 50, 270, 1345, 5),
    "ERing": (30, 270, 65, 4, 6),
    "Epilepsy": (137, 138, 206, 3, 4),
    "EthanolConcentration": (261, 263, 1751, 3, 4),
    "FaceDetection": (5890, 3524, 62, 144, 2),
    "FingerMovements": (316, 100, 50, 28, 2),
    "HandMovementDirection": (160, 74, 400, 10, 4),
    "Handwriting": (150, 850, 152, 3, 26),
    "Heartbeat": (204, 205, 405, 61, 2),
    "InsectWingbeat": (25000, 25000, 22, 200, 10),
    "JapaneseVowels": (270, 370, 29, 12, 9),
    "LSST": (2459, 2466, 36, 6, 14),
    "Libras": (180, 180, 45, 2, 15),
    "NATOPS": (180, 180, 51, 24, 6),
    "PEMS-SF": (267, 173, 144, 963, 7),
    "PenDigits": (7494, 3498, 8, 2, 10),
    "PhonemeSpectra": (3315, 3353, 217, 11, 39),
    "RacketSports": (151, 152, 30, 6, 4),
    "SelfRegulationSCP1": (268, 293, 896, 6, 2),
    "SelfRegulationSCP2": (200, 180, 1152, 7, 2),
    "SpokenArabicDigits": (6599, 2199, 93, 13, 10),
    "StandWalkJump": (12, 15, 2500, 4, 3),
    "UWaveGestureLibrary": (120, 320, 315, 3, 8),
}
_VARIABLE = ("CharacterTrajectories", "InsectWingbeat", "JapaneseVowels", "SpokenArabicDigits")
_VERIFIED = (
    "ArticularyWordRecognition",
    "AtrialFibrillation",
    "BasicMotions",
    "ERing",
    "FingerMovements",
    "HandMovementDirection",
    "Handwriting",
    "JapaneseVowels",
    "Libras",
    "NATOPS",
    "PenDigits",
    "StandWalkJump",
)

for _name, (_train, _test, _length, _channels, _classes) in _SIZES.items():
    CLASSIFICATION_SETS.register(_name)(
        ClassificationSpec(
            name=_name,
            train=_train,
            test=_test,
            length=_length,
            channels=_channels,
            classes=_classes,
            variable=_name in _VARIABLE,
            verified=_name in _VERIFIED,
        )
    )
