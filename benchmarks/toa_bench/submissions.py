"""Files for public leaderboards, made from the stored records: no GPU and no data set.

    write_submissions(Path("results"), Path("results/leaderboards/submissions"))

Each has the layout of its project; `all_results.csv` and fev's file hold the configurations whose data we have.

| file | project, commit | what it asks for |
| --- | --- | --- |
| gift-eval/toa/all_results.csv, config.json | SalesforceAIResearch/gift-eval, 4fd98a9 | a folder per model |
| fev/toa.csv | autogluon/fev, 1bc95fd | a file per model family; SQL and MASE are required |
| tsb-ad/toa.csv | TheDatumOrg/TSB-AD, 8763009 | the code of a detector; the file has columns of what its runs save |
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toa._files import write_atomically
from toa.experiments.records import Record
from toa_bench.gift_eval import fev_row, gift_eval_row
from toa_bench.leaderboards import read_lines
from toa_bench.tsb_ad import tsb_ad_row

# the method whose records are submitted
MODEL = "toa"
# as the README of gift-eval describes the fields; there is no public address yet
GIFT_EVAL_CARD = {
    "model": MODEL,
    "model_type": "deep-learning",
    "model_dtype": "float32",
    "model_link": "",
    "code_link": "",
    "org": "The toa developers",
    "testdata_leakage": "No",
    "replication_code_available": "No",
}
# records below the folder of results, the file, and the row of a record in it
FILES: Sequence[tuple[str, str, Callable[[Mapping[str, Any]], Record]]] = (
    ("leaderboards/gift-eval.jsonl", "gift-eval/toa/all_results.csv", gift_eval_row),
    ("leaderboards/fev.jsonl", "fev/toa.csv", fev_row),
    ("anomaly/detectors.jsonl", "tsb-ad/toa.csv", tsb_ad_row),
)


def write_submissions(results: Path, out: Path) -> list[Path]:
    """Write the files of all leaderboards; returns their paths."""
    contents = {name: submission_table(results / records, row) for records, name, row in FILES}
    contents["gift-eval/toa/config.json"] = json.dumps(GIFT_EVAL_CARD, indent=4) + "\n"
    for name, content in contents.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, content.encode())
    return [out / name for name in contents]


def submission_table(path: Path, row: Callable[[Mapping[str, Any]], Record]) -> str:
    """The rows of the records of `MODEL` as CSV."""
    rows = [row(record) for record in read_lines(path, "method") if record["method"] == MODEL]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
