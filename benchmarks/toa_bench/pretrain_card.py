"""The model card of pretrained weights, made from the record of their training and of their validation.

write_card(folder, record, scores)    # README.md beside config.json and model.safetensors
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toa._files import write_atomically
from toa.estimators.pretrained_forecasts import PLAIN, InferenceOptions

CARD_FILE = "README.md"


def write_card(
    folder: Path, record: Mapping[str, Any], scores: Mapping[str, Any] | None, inference: InferenceOptions = PLAIN
) -> None:
    """Write the card of weights into their folder."""
    write_atomically(folder / CARD_FILE, card_text(record, scores, inference).encode())


def card_text(record: Mapping[str, Any], scores: Mapping[str, Any] | None, inference: InferenceOptions = PLAIN) -> str:
    """The card as Markdown; `scores` are those of `toa_bench.pretrain_validation.validate_model`."""
    model, training = record["model"], record["training"]
    structure = model["structure"] or "dense"
    operators = "no operators" if model["attention"] == "softmax" else f"{structure} operators"
    hours = record["seconds"] / 3600.0
    averaged = max(1, record["averaged"])
    lines = [
        f"# {record['name']}: a pretrained forecaster of `toa`",
        "",
        f"{record['weights']:,} weights. Reads up to {model['context']:,} steps of one series, missing values",
        f"included, and forecasts up to {model['horizon']} steps with {len(model['quantiles'])} quantiles.",
        "",
        "## Use",
        "",
        "```python",
        "import toa",
        "",
        "toa.zero_shot(frame, horizon=24, interval=0.8)",
        "```",
        "",
        "## Model",
        "",
        f"- attention `{model['attention']}` with rotary positions; {operators}; {model['num_layers']} layers,",
        f"  {model['num_heads']} heads, width {model['embed_dim']}, patches of {model['patch_len']} steps.",
        "",
        "## Training",
        "",
        f"- Data: {record['series']:,} series that `{record['synthetic']['generator']}` drew (seed",
        f"  {record['synthetic']['seed']}). **The weights never saw a real series.**",
        f"- {record['step']:,} steps of {training['batch_size']} series; highest rate {training['learning_rate']:g};",
        f"  mean of the weights after {averaged} of the last steps; last loss {_number(record['loss'])}.",
        f"- Cost: {hours:.2f} hours on one {record['device']}.",
        *(f"- Restarted from weights at step {each['step']}: {each['reason']}." for each in record["restarts"]),
        "",
        "## Scores",
        "",
        *_score_lines(scores),
        _inference_line(inference),
        "",
        "## Limits",
        "",
        "- One series at a time: no covariates, no relations between series.",
        f"- Quantiles from {model['quantiles'][0]:g} to {model['quantiles'][-1]:g}; no forecast beyond them.",
        f"- Series of fewer than {training['least_context']} steps, after resampling, were not trained, and are",
        "  forecast badly.",
        "- Trained on synthetic series: kinds of series that the generators do not draw may be forecast badly. Compare",
        "  with seasonal naive on your own data.",
        "",
        "Licence: Apache-2.0, as `toa`.",
        "",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "not stored" if value is None else f"{value:.4f}"


def _inference_line(inference: InferenceOptions) -> str:
    """How forecasts are computed unless other options are given."""
    parts = []
    if inference.flip:
        parts.append("averaged with those of the negative series")
    if inference.contexts:
        parts.append(f"averaged over contexts of {', '.join(map(str, inference.contexts))} steps")
    if inference.season_steps is not None:
        parts.append(f"computed on series that are resampled to seasons of {inference.season_steps} steps")
    how = ", and ".join(parts) or "computed on the series as they are"
    line = f"Forecasts, here and unless `options` are given, are {how}. The same validation chose this."
    if inference.stretch > 1:
        line += (
            f" A series without a season is resampled to {inference.stretch} times as many steps, or as many as the "
            "context and the horizon allow; `benchmarks/pretrain-validation-short.toml` chose this."
        )
    return line


def _score_lines(scores: Mapping[str, Any] | None) -> list[str]:
    """A table of the validation, which chose the settings."""
    if scores is None:
        return ["No validation is stored.", ""]
    lines = [
        "Validation, by which settings were chosen (`benchmarks/pretrain-validation.toml`); ratios to seasonal naive.",
        "",
        "| set | windows | MASE | MASE ratio | pinball ratio | coverage of 80 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {each['windows']} | {each['mase']:.3f} | {each['mase_ratio']:.3f} | {each['pinball_ratio']:.3f} | "
        f"{each['coverage']:.1%} |"
        for name, each in scores["sets"].items()
    ]
    mean = scores["geometric_mean"]
    lines.append(f"| geometric mean, real sets | | | {mean['mase_ratio']:.3f} | {mean['pinball_ratio']:.3f} | |")
    return [*lines, ""]
