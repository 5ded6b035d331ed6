from dataclasses import fields, replace
from typing import Any

import pytest

from tests.support import message
from toa.models import BACKBONES, ClassifyHeadConfig, ForecastHeadConfig
from toa.nn import AttentionSpec

SIZES: dict[str, Any] = {
    "lookback": 24,
    "horizon": 6,
    "channels": 3,
    "num_classes": 2,
    "attention": AttentionSpec(name="softmax"),
    "label_len": 12,
    "embed_dim": 8,
    "num_heads": 2,
    "moving_average": 5,
}
NETWORKS: set[Any] = {entry.config for name in BACKBONES for entry in BACKBONES[name].tasks.values()}
CONFIGS: list[Any] = [*sorted(NETWORKS, key=lambda kind: kind.__name__), ForecastHeadConfig, ClassifyHeadConfig]
BAD: dict[Any, list[tuple[Any, str]]] = {
    int: [(-1, "at least"), ("8", "type int"), (True, "type int"), (2.0, "type int"), (None, "type int")],
    float: [(1.0, "[0, 1)"), (-0.1, "[0, 1)"), (None, "type float")],
    bool: [(1, "type bool")],
}


def make(kind: type[Any]) -> Any:
    names = [field.name for field in fields(kind)]
    return kind(**{name: value for name, value in SIZES.items() if name in names})


@pytest.mark.parametrize("kind", CONFIGS, ids=[kind.__name__ for kind in CONFIGS])
def test_every_number_and_flag_of_a_config_is_checked(kind):
    config = make(kind)
    for field in fields(kind):
        for value, rule in BAD.get(field.type, []):
            with pytest.raises(ValueError, match=message(f"{field.name} must", rule, "got", value)):
                replace(config, **{field.name: value})
        if field.type is int and field.name not in ("num_marks", "label_len"):
            with pytest.raises(ValueError, match=message(f"{field.name} must be at least", "got 0")):
                replace(config, **{field.name: 0})
    if hasattr(config, "num_heads"):
        with pytest.raises(ValueError, match=message("embed_dim must be a multiple of num_heads=3", "8")):
            replace(config, num_heads=3)
    if hasattr(config, "dropout"):
        assert replace(config, dropout=0).dropout == 0
    if hasattr(config, "label_len"):
        with pytest.raises(ValueError, match=message("label_len must be at most lookback=24", "25")):
            replace(config, label_len=25)
