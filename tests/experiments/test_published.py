import csv
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support import message
from toa.experiments.paper.published import parse_published, published_numbers

HEADER = "table,dataset,horizon,backbone,variant,metric,value\n"


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


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("a,b\n", ("x.csv must have the columns table, dataset", "got a, b")),
        (f"{HEADER}t,d,,b,v,m\n", ("line 2 of x.csv must have 7 fields, got 6",)),
        (f"{HEADER}t,d,,b,v,m,much\n", ("line 2 of x.csv must end with a finite number, got 'much'",)),
        (f"{HEADER}t,d,,b,v,m,nan\n", ("line 2 of x.csv must end with a finite number",)),
        (f"{HEADER}t,d,,b,v,m,1\nt,d,,b,v,m,2\n", ("line 3 of x.csv", "got t, d")),
    ],
)
def test_a_wrong_file_is_refused(content, parts):
    with pytest.raises(ValueError, match=message(*parts)):
        parse_published(content, "x.csv")
