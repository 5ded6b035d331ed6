"""The campaign: `make campaign`, or python -m tests.campaign --files 20000 --kills 1000.

It can be stopped and repeated: finished parts are kept in results/reliability/campaign.json.
"""

import argparse
import json
import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.campaign.fuzz import Outcome, fuzz
from tests.campaign.kills import kill_runs
from tests.campaign.loaders import LOADERS
from tests.support import ROOT
from toa._console import make_console
from toa._files import parse_json, seal, unseal, write_atomically
from toa.experiments.records import provenance

_CHUNK = 100


class Campaign:
    """Results so far, by name, in a file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        found: Any = unseal(parse_json(path.read_text(), str(path)), str(path))[0] if path.exists() else {"parts": {}}
        self.parts: dict[str, Any] = found["parts"]

    def done(self, name: str) -> int:
        part = self.parts.get(name)
        return part["tried"] if part is not None and part["seed"] == self.seed else 0

    def add(self, name: str, outcome: Outcome, tried: int, seconds: float) -> None:
        old = self.parts.get(name, {}) if self.done(name) else {}
        counts = {key: old.get("counts", {}).get(key, 0) + value for key, value in outcome.counts.items()}
        self.parts[name] = {
            "seed": self.seed,
            "tried": old.get("tried", 0) + tried,
            "counts": old.get("counts", {}) | counts,
            "failures": old.get("failures", []) + outcome.failures,
            "seconds": round(old.get("seconds", 0.0) + seconds, 1),
            **provenance(torch.device("cpu"), ["make", "campaign"]),
        }
        content = seal({"task": "reliability", "parts": self.parts})
        write_atomically(self.path, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="files over all loaders")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability" / "campaign.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    campaign = Campaign(args.out, args.seed)
    each = -(-args.files // len(LOADERS))
    with tempfile.TemporaryDirectory() as scratch:
        for kind in LOADERS:
            while (done := campaign.done(f"fuzz {kind}")) < each:
                begin, numbers = time.monotonic(), range(done, min(each, done + _CHUNK))
                outcome = fuzz(kind, Path(scratch) / kind, seed=args.seed, numbers=numbers)
                campaign.add(f"fuzz {kind}", outcome, len(numbers), time.monotonic() - begin)
            if (part := campaign.parts.get(f"fuzz {kind}")) is None:
                continue
            make_console().print(
                f"fuzz {kind}: {part['tried']} files, {len(part['failures'])} bad, {part['seconds']} s"
            )
        while (done := campaign.done("kill run")) < args.kills:
            begin, some = time.monotonic(), min(20, args.kills - done)
            outcome = kill_runs(Path(scratch) / f"kills-{done}", seed=args.seed + done, kills=some)
            campaign.add("kill run", outcome, outcome.counts["kills"], time.monotonic() - begin)
            make_console().print(f"kills: {campaign.done('kill run')} of {args.kills}")
    failures = [line for part in campaign.parts.values() for line in part["failures"]]
    make_console().print(*failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
