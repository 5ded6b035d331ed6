import csv
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from toa_paper.published import published_numbers


def test_there_are_all_the_numbers_of_each_table():
    assert Counter(number.table for number in published_numbers()) == {
        "forecast-full": 864,
        "forecast-average": 72,
        "pems-full": 256,
        "pems-average": 32,
        "classification": 196,
        "classification-summary": 8,
        "anomaly": 75,
        "sor-ablation-full": 80,
        "sor-ablation-average": 20,
        "demixing": 3,
        "efficiency": 10,
    }
    assert len(published_numbers()) == 1616


def test_numbers_keep_the_digits_they_are_printed_with():
    (number,) = (
        number
        for number in published_numbers()
        if (number.table, number.dataset, number.horizon, number.backbone, number.variant, number.metric)
        == ("forecast-full", "Weather", "96", "patchtst", "softmax", "mae")
    )
    assert (number.text, number.value) == ("0.200", 0.2)


@pytest.mark.data
def test_no_number_was_altered():
    path = Path(os.environ.get("TOA_DATA", "")).parent / "paper" / "published.csv"
    if not path.is_file():
        pytest.skip(f"the list that the numbers were taken from is not at {path}")
    with path.open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    ours = [
        (number.table, number.dataset, number.horizon, number.backbone, number.variant, number.metric, number.text)
        for number in published_numbers()
    ]
    assert ours == rows


def test_every_number_is_finite_and_appears_once():
    assert all(math.isfinite(number.value) for number in published_numbers())
    keys = [replace(number, text="") for number in published_numbers()]
    assert len(set(keys)) == len(keys)
