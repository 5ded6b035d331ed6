"""Agreement with the authors' code: our backbones and theirs with the same weights on the same input.

Compared are outputs and gradients of all weights in evaluation, in float64, or float32 where theirs has no other.

The authors' code is imported from a checkout, each in a process of its own because their packages have the same names.
Nothing of it is stored but the sha256 of its files.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError
from toa.data import mark_names
from toa.experiments.records import Record, provenance
from toa.models import BACKBONES, build_forecaster
from toa_bench.peer import hide_checkouts, peer_arguments, stand_in_for_missing

# sizes of every comparison, under our names
SIZES = {"lookback": 96, "horizon": 24, "channels": 5}
_MODEL: dict[str, Any] = {"embed_dim": 32, "num_heads": 4, "num_layers": 2, "ff_dim": 64, "label_len": 48}
_MODEL |= {"decoder_layers": 1, "dropout": 0.0, "head_dropout": 0.0, "moving_average": 25, "top_k": 2}
# windows per batch
_BATCH = 4
# seed of weights and inputs
_SEED = 0
# Informer draws keys; with this factor it takes all
_ALL_KEYS = 100
# the library's names of our backbones, and what it has instead of our defaults
_TSLIB = {"patchtst": "PatchTST", "itransformer": "iTransformer", "transformer": "Transformer", "informer": "Informer"}
_TSLIB |= {"autoformer": "Autoformer", "dlinear": "DLinear", "tsmixer": "TSMixer"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "patchtst": {"style": "tslib"},
    "informer": {"factor": _ALL_KEYS},
    "autoformer": {"factor": 3},
}
# a name in the authors' code to ours, applied in order; "" drops what is computed, not learned
_NAMES = (
    (r".*(?:position_embedding\.pe|sdp_attn\.scale)$", ""),
    (r"^model\.backbone\.encoder\.layers", "backbone.blocks"),
    (r"^model\.backbone\.W_P\.", "backbone.embed.projection."),
    (r"^model\.backbone\.W_pos$", "backbone.embed.position"),
    (r"^model\.head\.linear", "head"),
    (r"self_attn\.W_(.)", lambda m: f"attention.{m[1].lower()}_proj"),
    (r"self_attn\.to_out\.0", "attention.out_proj"),
    (r"norm_attn\.1", "attention_norm"),
    (r"norm_ffn\.1", "ff_norm"),
    (r"(query|key|value|out)_projection", lambda m: f"{m[1][0] if m[1] != 'out' else 'out'}_proj"),
    (r"^(encoder|Channel_transformer)\.attn_layers", "blocks"),
    (r"^encoder\.conv_layers\.(\d+)\.downConv", r"shorten.\1.conv"),
    (r"^encoder\.conv_layers", "shorten"),
    (r"^decoder\.layers\.(\d+)\.projection", r"decoder_blocks.\1.trend"),
    (r"^decoder\.layers", "decoder_blocks"),
    (r"self_attention", "own"),
    (r"cross_attention", "cross"),
    (r"^(blocks.*)norm1", r"\1attention_norm"),
    (r"^(blocks.*)norm2", r"\1ff_norm"),
    (r"^(decoder_blocks.*)norm1", r"\1own_norm"),
    (r"^(decoder_blocks.*)norm2", r"\1cross_norm"),
    (r"^(decoder_blocks.*)norm3", r"\1ff_norm"),
    (r"conv1", "ff.0"),
    (r"conv2", "ff.3"),
    (r"^(encoder|decoder)\.norm(?:\.1|\.layernorm)?\.", r"\1_norm."),
    (r"^decoder\.projection", "projection"),
    (r"^(?:enc|patch)_embedding\.value_embedding(?:\.tokenConv)?", "embed.projection"),
    (r"^dec_embedding\.value_embedding\.tokenConv", "decoder_embed.projection"),
    (r"^enc_embedding\.temporal_embedding\.embed", "embed.marks"),
    (r"^dec_embedding\.temporal_embedding\.embed", "decoder_embed.marks"),
    (r"^Linear_Seasonal", "seasonal"),
    (r"^Linear_Trend", "trend"),
    (r"^model\.", "blocks."),
    (r"^(?:head\.linear|linear_head\.0)", "head"),
    # DUET
    (r"^Channel_transformer\.norm", "token_norm"),
    (r"^mask_generator\.A$", "mask.metric"),
    (r"^cluster\.W_h$", "gate.mixing"),
    (r"^cluster\.gate\.distribution_fit", "gate.logits"),
    (r"^cluster\.noise\.distribution_fit", "gate.noise"),
    (r"^cluster\.revin\.affine_", "norm."),
    (r"^cluster\.(mean|std)$", ""),
)


def _rename(backbone: str, name: str) -> str:
    """Our name of a tensor of the authors' model; "" if ours has none."""
    replacement: Any
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    if backbone == "autoformer":
        name = name.replace(".attention.", ".own.")
    if backbone == "itransformer":
        name = re.sub("^projection", "head", name)
    if backbone in ("patchtst", "itransformer") and name and not name.startswith(("head", "backbone")):
        name = f"backbone.{name.replace('encoder_norm', 'norm')}"
    return name


def _translate(backbone: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the authors' model under our names and in our shapes."""
    found: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        expert = re.fullmatch(r"cluster\.experts\.(\d+)\.Linear_(Seasonal|Trend)\.(weight|bias)", name)
        if expert:
            stacked = found.setdefault(f"experts.{expert[3]}", torch.zeros_like(ours[f"experts.{expert[3]}"]))
            stacked[int(expert[1]), int(expert[2] == "Trend")] = tensor.mT if expert[3] == "weight" else tensor
        elif own := _rename(backbone, name):
            if backbone == "patchtst" and own == "head.weight":
                # theirs flattens (width, tokens), ours (tokens, width)
                tensor = tensor.unflatten(1, (_MODEL["embed_dim"], -1)).mT.flatten(1)
            found[own] = tensor.reshape(ours[own].shape) if own in ours else tensor
    return found


def _shaken(model: nn.Module) -> nn.Module:
    """The model in evaluation with random weights and statistics, none of them zero or one by default."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            # weights and statistics, not tables of positions or scales
            if tensor.is_floating_point() and (tensor.requires_grad or 0 < tensor.dim() < 3):
                tensor.add_(0.1 * torch.rand_like(tensor))
    return model.eval()


def _arguments(**changes: Any) -> SimpleNamespace:
    """Our sizes under the names of the authors."""
    run: Any = SimpleNamespace(model=_MODEL, **SIZES)
    sizes = peer_arguments(run, SIZES["channels"]) | {"fc_dropout": 0.0, "output_attention": False, "CI": True}
    sizes |= {"head_dropout": 0.0, "individual": False, "patch_len": 16, "stride": 8, "padding_patch": "end"}
    sizes |= {"revin": 1, "affine": 0, "subtract_last": 0, "decomposition": 0, "kernel_size": 25}
    sizes |= {"k": _MODEL["top_k"], "num_experts": 4, "hidden_size": 256, "noisy_gating": True}
    return SimpleNamespace(**(sizes | changes))


# backbone, our settings, the authors' model, and its answer to a batch
Peer = tuple[str, dict[str, Any], nn.Module, Callable[[Mapping[str, Tensor]], Tensor]]


def _tslib_models(path: Path) -> Iterator[Peer]:
    for backbone, name in _TSLIB.items():
        if (path / "models" / f"{name}.py").is_file():
            module: Any = import_module(f"models.{name}")
            settings = _SETTINGS.get(backbone, {})
            model = module.Model(_arguments(factor=settings.get("factor", 3))).double()

            def answer(batch: Mapping[str, Tensor], model: nn.Module = model) -> Tensor:
                x, marks, future = batch["series"], batch["marks"], batch["future_marks"]
                label, horizon = _MODEL["label_len"], SIZES["horizon"]
                start = torch.cat((x[:, -label:], x.new_zeros(len(x), horizon, x.shape[2])), 1)
                found: Tensor = model(x, marks, start, torch.cat((marks[:, -label:], future), 1))
                return found[:, -horizon:]

            yield backbone, settings, model, answer


def _patchtst_models(path: Path) -> Iterator[Peer]:
    sys.path.insert(0, str(path / "PatchTST_supervised"))
    module: Any = import_module("models.PatchTST")
    model = module.Model(_arguments()).double()
    yield "patchtst", {"style": "official"}, model, lambda batch: model(batch["series"])


def _without_noise(logits: Tensor, hard: bool) -> Tensor:
    """The hard Gumbel softmax with zero noise: a choice, with the gradient of the softmax."""
    soft = logits.softmax(-1)
    return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]) - soft.detach() + soft


def _duet_models(path: Path) -> Iterator[Peer]:
    # their __init__ files import the complete benchmark
    for name in ("ts_benchmark", "ts_benchmark.baselines", "ts_benchmark.baselines.duet"):
        package = ModuleType(name)
        package.__path__ = [str(path.joinpath(*name.split(".")))]
        sys.modules[name] = package
    attention: Any = import_module("ts_benchmark.baselines.duet.utils.masked_attention")
    # their mask is random in evaluation too; compared without noise
    attention.gumbel_softmax = _without_noise
    module: Any = import_module("ts_benchmark.baselines.duet.models.duet_model")
    model = module.DUETModel(_arguments())
    yield "duet", {"mask_sampling": "never"}, model, lambda batch: model(batch["series"])[0]


# what a checkout must have, and its models
_PEERS: dict[str, tuple[str, Callable[[Path], Iterator[Peer]]]] = {
    "thuml/Time-Series-Library": ("run.py", _tslib_models),
    "yuqinie98/PatchTST": ("PatchTST_supervised/models/PatchTST.py", _patchtst_models),
    "decisionintelligence/DUET": ("ts_benchmark/baselines/duet/models/duet_model.py", _duet_models),
}


def find_peer(path: Path) -> str:
    """Name of the authors' code in a checkout."""
    for name, (file, _) in _PEERS.items():
        if (path / file).is_file():
            return name
    known = ", ".join(f"{name} ({file})" for name, (file, _) in _PEERS.items())
    raise ArgumentError("peer", "be a checkout with a known file", path, f"known: {known}")


def compare_checkout(path: Path) -> list[Record]:
    """Compare every backbone of a checkout, in this process: differences relative to one plus the largest value."""
    name = find_peer(path)
    sys.path.insert(0, str(path))
    stand_ins = stand_in_for_missing()
    found = []
    torch.manual_seed(_SEED)
    for backbone, own, theirs, answer in _PEERS[name][1](path):
        dtype = next(theirs.parameters()).dtype
        uses_marks = BACKBONES[backbone].tasks["forecast"].network.uses_marks
        shapes = {"series": SIZES["lookback"], "marks": SIZES["lookback"], "future_marks": SIZES["horizon"]}
        widths = {"series": SIZES["channels"]}
        batch = {
            part: torch.randn(_BATCH, steps, widths.get(part, len(mark_names())), dtype=dtype)
            for part, steps in shapes.items()
        }
        known = BACKBONES[backbone].settings("forecast")
        settings = {key: value for key, value in _MODEL.items() if key in known} | own
        attention = "softmax" if BACKBONES[backbone].takes_attention else None
        marks = len(mark_names()) if uses_marks else 0
        ours = build_forecaster(backbone, attention=attention, num_marks=marks, settings=settings, **SIZES)
        # raises if a tensor of either side has no partner
        ours.to(dtype).eval().load_state_dict(_translate(backbone, _shaken(theirs).state_dict(), ours.state_dict()))
        given = (batch["marks"], batch["future_marks"]) if uses_marks else ()
        outputs = answer(batch), ours(batch["series"], *given)
        slopes = _gradients(ours, outputs[1])
        expected = _translate(backbone, _gradients(theirs, outputs[0]), slopes)
        found.append(
            {
                "backbone": backbone,
                "peer": name,
                "peer_commit": _commit(path),
                "peer_files": _sums(path),
                "stand_ins": stand_ins,
                "dtype": str(dtype).removeprefix("torch."),
                "sizes": SIZES | settings,
                "output": _difference(*outputs),
                "gradient": max(_difference(expected[name], slopes[name]) for name in slopes),
            }
        )
    return found


def _gradients(model: nn.Module, output: Tensor) -> dict[str, Tensor]:
    """Gradients of a fixed sum of the output by the weights that it depends on."""
    weights = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).view_as(output)
    (output * weights).sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def _difference(theirs: Tensor, ours: Tensor) -> float:
    return ((theirs - ours).abs().max() / (1.0 + theirs.abs().max())).item()


def _commit(path: Path) -> str | None:
    """Commit of a checkout; None for a copy without history."""
    if not (path / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(path), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    return found.stdout.strip() or None


def _sums(path: Path) -> dict[str, str]:
    """Sha256 of the files of the checkout that were imported."""
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = sorted({Path(file) for file in loaded if file and Path(file).is_relative_to(path)})
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def run_agreement(peers: Sequence[Path], command: Sequence[str]) -> list[Record]:
    """Compare the backbones of all checkouts; one record per backbone."""
    for path in peers:
        find_peer(path)
    where = provenance(torch.device("cpu"), hide_checkouts(command))
    found: list[Record] = []
    for path in peers:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            rows = pool.submit(compare_checkout, path.resolve()).result()
        found += [{"benchmark": "agreement", **row, **where} for row in rows]
    return found
