"""The campaign: `make campaign`, or python -m tests.campaign --files 20000 --kills 1000.

Finished parts are kept in results/reliability/campaign.json, so that it can be stopped and repeated. A part of another
commit runs again, unless --keep-older is set. Two parts run at a time, each in a process of its own; those that measure
time or memory run alone, after the others.
"""

import argparse
from pathlib import Path

from tests.campaign.parts import all_parts
from tests.campaign.running import Campaign, new_process, run_parts
from tests.support import ROOT
from toa._console import make_console

# parts that run at the same time, unless stated
JOBS = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="files over all loaders")
    parser.add_argument("--kills", type=int, default=1_000, help="kills over all kinds of work")
    parser.add_argument("--faults", type=int, default=80, help="failures of the disk per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=JOBS, help="parts at a time")
    parser.add_argument("--only", default="", help="parts whose name begins like this")
    parser.add_argument("--keep-older", action="store_true", help="count parts that are complete at another commit")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability" / "campaign.json")
    args = parser.parse_args()
    campaign = Campaign(args.out, args.seed, keep_older=args.keep_older)
    parts = list(all_parts(files=args.files, kills=args.kills, faults=args.faults))
    campaign.plan(parts)
    chosen = [part for part in parts if part.name.startswith(args.only)]
    run_parts(campaign, chosen, args.jobs, new_process)
    lines = campaign.state(chosen)
    make_console().print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    raise SystemExit(main())
