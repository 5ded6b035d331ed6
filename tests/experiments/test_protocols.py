import dataclasses
import itertools
import json

import pytest

from tests.support import message
from toa.data import DATASETS
from toa.experiments import config_hash, load_protocol, protocol_names, resolve
from toa.models import BACKBONES, backbone_names, build_forecaster
from toa.training import TASKS

CELLS = [
    (protocol, backbone, dataset, horizon)
    for protocol in protocol_names()
    for backbone in backbone_names("forecast")
    if backbone in load_protocol("forecast", protocol).tables
    for tables in [load_protocol("forecast", protocol).tables[backbone]]
    for dataset in tables
    if dataset in DATASETS
    for horizon in tables[dataset].get("horizons", tables["default"]["horizons"])
]


def cell(protocol: str = "toa-paper", **options):
    given = {"dataset": "ETTh1", "horizon": 96, "backbone": "patchtst", "attention": "toa-gated", **options}
    return resolve("forecast", protocol, **given)


def test_the_protocols_named_by_the_readme_exist():
    known = {"itransformer-96", "itransformer-pems", "patchtst-336", "patchtst-512", "toa-paper", "tslib-96"}
    known |= {"duet-search", "duet-unified-96", "two-axis"}
    assert known <= set(protocol_names())
    assert all(len(load_protocol("forecast", name).about) > 20 for name in protocol_names())


def test_every_cell_is_complete_and_its_model_can_be_built():
    for protocol, backbone, dataset, horizon in CELLS:
        check_cell(protocol, backbone, dataset, horizon)


@pytest.mark.parametrize("task", ["forecast", "anomaly", "classify"])
def test_two_axis_has_settings_for_every_dataset(task):
    catalogue = TASKS[task].catalogue
    assert catalogue is not None
    names = ["two-axis", *({"toa"} & set(protocol_names(task)))]
    # sets with many channels have a protocol of their own
    wide = set(load_protocol("forecast", "toa-wide").tables["itransformer"]) - {"Weather", "ECL", "Traffic", "Solar"}
    datasets = [name for name in catalogue if task != "forecast" or name.startswith("PEMS0") or name not in wide]
    for protocol, dataset in itertools.product(names, set(datasets) - {"PEMS08-Last40"}):
        horizons = {"horizon": {"ILI": 24}.get(dataset, 96)} if task == "forecast" else {}
        config = resolve(task, protocol, dataset=dataset, backbone="two-axis", **horizons)
        assert config.attention.name == "toa-softmax"


def check_cell(protocol: str, backbone: str, dataset: str, horizon: int) -> None:
    attention = "softmax" if BACKBONES[backbone].takes_attention else None
    config = resolve("forecast", protocol, dataset=dataset, horizon=horizon, backbone=backbone, attention=attention)
    # the sizes are checked, the model itself kept small
    small = {"embed_dim": config.model.get("num_heads", 1), "ff_dim": 2}
    settings = {**config.model, **{key: value for key, value in small.items() if key in config.model}}
    model = build_forecaster(
        backbone,
        lookback=config.lookback,
        horizon=config.horizon,
        channels=2,
        num_marks=4 if config.marks else 0,
        attention=config.attention,
        settings=settings,
    )
    assert sum(p.numel() for p in model.parameters()) > 0
    assert config.model.get("embed_dim", 0) % config.model.get("num_heads", 1) == 0
    assert json.loads(json.dumps(dataclasses.asdict(config)))["dataset"] == dataset


@pytest.mark.parametrize(
    ("protocol", "options", "expected"),
    [
        ("patchtst-336", {}, {"lookback": 336, "seed": 2021, "batch_size": 128}),
        ("patchtst-512", {"dataset": "Weather"}, {"lookback": 512, "batch_size": 128}),
        ("patchtst-512", {"dataset": "ECL"}, {"lookback": 512, "batch_size": 32}),
        ("itransformer-96", {"backbone": "itransformer"}, {"lookback": 96, "marks": True, "seed": 2023}),
        ("tslib-96", {"dataset": "ETTm2", "horizon": 192}, {"batch_size": 128, "lookback": 96, "seed": 2021}),
        (
            "itransformer-pems",
            {"backbone": "itransformer", "dataset": "PEMS08", "horizon": 48},
            {"batch_size": 16, "marks": False, "drop_last": True, "seed": 2023},
        ),
        ("tslib-96", {"backbone": "transformer"}, {"lookback": 96, "marks": True, "drop_last": False}),
        ("tslib-96", {"backbone": "dlinear", "attention": None}, {"marks": False, "attention": None}),
        ("duet-unified-96", {"backbone": "duet"}, {"lookback": 96, "loss": "mae", "drop_last": True, "seed": 2021}),
        ("duet-search", {"backbone": "duet", "dataset": "Traffic"}, {"lookback": 336, "batch_size": 16}),
        ("duet-search", {"backbone": "duet", "dataset": "Traffic", "horizon": 720}, {"lookback": 512}),
        ("duet-search", {"backbone": "duet", "changes": ["loss=mse"]}, {"lookback": 512, "loss": "mse"}),
        ("toa-paper", {}, {"lookback": 512, "seed": 2024}),
        ("toa-paper", {"backbone": "itransformer"}, {"lookback": 96, "seed": 2024}),
    ],
)
def test_settings_are_the_published_ones(protocol, options, expected):
    config = cell(protocol, **options)
    assert {name: getattr(config, name) for name in expected} == expected


def test_horizons_override_datasets_and_datasets_override_defaults():
    long, short = (
        cell("itransformer-96", backbone="itransformer", horizon=horizon).model["embed_dim"] for horizon in (720, 96)
    )
    assert (long, short) == (512, 256)
    tslib = {h: cell("tslib-96", dataset="ETTm1", horizon=h) for h in (96, 192)}
    assert (tslib[96].batch_size, tslib[96].model["num_layers"]) == (32, 1)
    assert (tslib[192].batch_size, tslib[192].model["num_layers"]) == (128, 3)


def test_the_papers_optimizer_overrides_the_backbones_schedule():
    training = cell(dataset="ETTm1").training
    assert (training.optimizer, training.betas, training.schedule) == ("adamw", (0.9, 0.95), "onecycle")
    assert training.learning_rate == 1e-4
    for dataset in ("ETTh1", "Weather", "Exchange"):
        duet = cell(backbone="duet", dataset=dataset)
        assert (duet.loss, duet.training.optimizer, duet.training.learning_rate) == ("mse", "adamw", 5e-4)


def test_attention_settings_go_with_their_attention():
    assert cell().attention.gate_norm == "rms"
    assert cell(attention="toa-relu").attention.score_norm == "rms"
    assert cell(attention="softmax").attention.score_norm is None


@pytest.mark.parametrize(
    ("dataset", "horizon", "rate", "layers", "width", "norm"),
    [
        ("PEMS03", 96, 1e-3, 4, 512, True),
        ("PEMS04", 12, 5e-4, 4, 1024, False),
        ("PEMS07", 24, 1e-3, 2, 512, False),
        ("PEMS07", 48, 1e-3, 4, 512, False),
        ("PEMS08", 24, 1e-4, 2, 512, True),
        ("PEMS08", 96, 1e-3, 4, 512, False),
    ],
)
def test_pems_settings_are_the_published_ones(dataset, horizon, rate, layers, width, norm):
    config = cell("itransformer-pems", backbone="itransformer", dataset=dataset, horizon=horizon)
    assert config.training.learning_rate == rate
    assert (config.model["num_layers"], config.model["embed_dim"], config.model["ff_dim"]) == (layers, width, width)
    assert config.model["instance_norm"] == norm


@pytest.mark.parametrize(
    ("backbone", "dataset", "horizon", "expected"),
    [
        ("transformer", "ETTm2", 720, {"label_len": 48, "epochs": 10}),
        ("transformer", "ILI", 60, {"label_len": 18, "epochs": 10}),
        ("transformer", "Traffic", 192, {"label_len": 48, "epochs": 3}),
        ("transformer", "Weather", 96, {"label_len": 48, "epochs": 3}),
        ("transformer", "Weather", 192, {"label_len": 48, "epochs": 10}),
        ("transformer", "Exchange", 336, {"label_len": 48, "epochs": 1}),
        ("tsmixer", "ECL", 96, {"embed_dim": 256, "learning_rate": 1e-4}),
        ("tsmixer", "Traffic", 96, {"embed_dim": 512, "learning_rate": 1e-3}),
        ("tsmixer", "Weather", 96, {"embed_dim": 32, "learning_rate": 1e-4}),
        ("dlinear", "ILI", 24, {"moving_average": 25, "epochs": 10}),
        ("informer", "ECL", 96, {"factor": 3, "label_len": 48, "epochs": 10}),
        ("informer", "Weather", 96, {"factor": 1, "epochs": 10}),
        ("autoformer", "ETTm2", 96, {"factor": 1, "epochs": 10}),
        ("autoformer", "Exchange", 192, {"factor": 3, "epochs": 1}),
        ("autoformer", "Weather", 96, {"moving_average": 25, "epochs": 2}),
        ("autoformer", "ILI", 60, {"label_len": 18, "epochs": 10}),
    ],
)
def test_librarys_settings_are_the_published_ones(backbone, dataset, horizon, expected):
    config = cell("tslib-96", backbone=backbone, dataset=dataset, horizon=horizon, attention=None)
    found = {**dataclasses.asdict(config.training), **config.model}
    assert {key: found[key] for key in expected} == expected
    assert config.lookback == (36 if dataset == "ILI" else 96)


def test_no_attention_means_the_default_or_none():
    chosen = cell(attention=None).attention
    assert chosen is not None
    assert chosen.name == "toa-gated"
    assert cell(attention=None) == cell()
    assert cell("tslib-96", backbone="tsmixer", attention=None).attention is None


def test_gradients_of_several_batches_can_be_accumulated():
    config = cell("itransformer-96", backbone="itransformer", dataset="Solar", changes=["training.accumulate=4"])
    assert config.training.accumulate == 4


def test_changes_reach_every_part():
    config = cell(
        seed=7,
        changes=[
            "lookback=336",
            "training.learning_rate=1e-3",
            "training.betas=[0.8, 0.9]",
            "model.dropout=0.5",
            "attention.sor=false",
            "attention.score_norm=l2",
        ],
    )
    assert (config.seed, config.lookback, config.training.learning_rate) == (7, 336, 1e-3)
    assert config.training.betas == (0.8, 0.9)
    assert config.model["dropout"] == 0.5
    assert config.attention.sor is False
    assert config.attention.score_norm == "l2"
    assert config_hash(config) != config_hash(cell(seed=7))


def test_a_subset_has_the_settings_of_the_full_dataset():
    assert cell(dataset="ECL-6ch").batch_size == cell(dataset="ECL").batch_size == 32


def test_a_file_gets_the_defaults_and_any_horizon():
    assert cell(dataset="my/own.csv", horizon=17).horizon == 17


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"protocol": "toa-papr"}, ("unknown protocol 'toa-papr'", "toa-paper")),
        ({"dataset": "ETTh3"}, ("unknown dataset 'ETTh3'", "ETTh1")),
        (
            {"protocol": "patchtst-512", "dataset": "PEMS03", "horizon": 12},
            ("unknown dataset of protocol 'patchtst-512' 'PEMS03'", "ETTh1"),
        ),
        ({"horizon": 100}, ("horizon of ETTh1", "96, 192, 336, 720", "got 100", "path")),
        ({"backbone": "patchtts"}, ("unknown backbone 'patchtts'", "itransformer, patchtst, transformer")),
        (
            {"protocol": "itransformer-96"},
            ("unknown backbone of protocol 'itransformer-96' 'patchtst'", "itransformer"),
        ),
        ({"attention": "toa"}, ("unknown attention 'toa'", "toa-gated")),
        (
            {"protocol": "tslib-96", "backbone": "dlinear", "attention": "softmax"},
            ("attention must be left out for model 'dlinear'", "got 'softmax' in", "dlinear on ETTh1"),
        ),
        (
            {"protocol": "tslib-96", "backbone": "dlinear", "attention": None, "changes": ["attention.sor=false"]},
            ("attention must be left out for model 'dlinear'", "got 'sor' in", "dlinear on ETTh1"),
        ),
        ({"changes": ["lokback=3"]}, ("unknown key 'lokback'", "lookback")),
        ({"changes": ["training.lr=3"]}, ("unknown key 'lr' in training", "learning_rate")),
        ({"changes": ["attention.structur=dense"]}, ("unknown key 'structur' in attention", "structure")),
        ({"changes": ["lookback.x=3"]}, ("unknown key 'lookback.x'", "lookback")),
        ({"changes": ["lookback"]}, ("a change must read key=value, got 'lookback'",)),
        ({"changes": ["batch_size=0"]}, ("batch_size must be at least 1, got 0",)),
        ({"changes": ["loss=huber"]}, ("unknown loss 'huber'", "mse, mae")),
    ],
)
def test_wrong_cells_raise_an_error(options, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        cell(**options)
