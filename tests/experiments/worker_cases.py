"""A sweep with two workers: `python -m tests.experiments.worker_cases EXECUTOR FOLDER RUNS EPOCHS KILLS`.

KILLS workers are killed at random moments, but at most two per run. The executor "cluster" is Ray on two simulated
machines, of which one is lost. Prints the result as JSON.
"""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

from tests.experiments.sweep_cases import make_jobs, stamps, write_series
from toa.experiments.claims import holder
from toa.experiments.run import Job
from toa.experiments.sweep import MAX_DEATHS, Event, RunContext, sweep


class Killer(threading.Thread):
    """Kills workers at random moments, and counts records that change after they were written."""

    def __init__(self, jobs: list[Job], out: Path, kills: int) -> None:
        super().__init__(daemon=True)
        self.jobs = jobs
        self.out = out
        self.left = kills
        self.chance = random.Random(kills)
        self.killed: list[str] = []
        self.known: dict[str, int] = {}
        self.rewritten = 0
        self.over = threading.Event()

    def run(self) -> None:
        while self.left and not self.over.wait(self.chance.uniform(0.05, 0.4)):
            victims = [job for job in self.jobs if self.killed.count(job.key) < MAX_DEATHS - 1]
            found = [(job.key, who["pid"]) for job in victims if (who := holder(job.folder(self.out))) and "pid" in who]
            if found:
                key, pid = self.chance.choice(found)
                os.kill(pid, signal.SIGKILL)
                self.killed.append(key)
                self.left -= 1
            self.check()

    def check(self) -> None:
        found = stamps(self.out)
        self.rewritten += sum(found.get(name) != written for name, written in self.known.items())
        self.known |= found


def play(executor: str, folder: Path, runs: int, epochs: int, kills: int) -> dict[str, object]:
    jobs = make_jobs(write_series(folder), runs, f"training.epochs={epochs}")
    out = folder / "out"
    events: list[Event] = []
    log = os.open(folder / "events.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def watch(event: Event) -> None:
        events.append(event)
        os.write(log, f"{event.kind}\n".encode())

    killer = Killer(jobs, out, kills)
    killer.start()
    ended = sweep(jobs, RunContext(out=out, device="cpu", poll_s=0.1), executor=executor, workers=2, watch=watch)
    killer.over.set()
    killer.join()
    killer.check()
    done = [event.key for event in events if event.kind == "done"]
    return {
        "records": len(ended.records),
        "files": len(stamps(out)),
        "failures": list(ended.failures.values()),
        "done": len(done),
        "different": len(set(done)),
        "kills": len(killer.killed),
        "rewritten": killer.rewritten,
        "held": sum(holder(job.folder(out)) is not None for job in jobs),
    }


def cluster(folder: Path, runs: int, epochs: int) -> dict[str, object]:
    """A sweep on a simulated cluster of two machines that loses one of them."""
    from ray.cluster_utils import Cluster

    jobs = make_jobs(write_series(folder), runs, f"training.epochs={epochs}")
    out = folder / "out"
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = machines.add_node(num_cpus=1)
    begun: list[str] = []
    lost: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "begin":
            begun.append(event.key)
        # both machines have begun a run by then
        if len(set(begun)) >= 4 and not lost:
            machines.remove_node(second, allow_graceful=False)
            lost.append(len(stamps(out)))

    context = RunContext(out=out, device="cpu", poll_s=0.1)
    ended = sweep(jobs, context, executor="ray", address=machines.address, watch=watch)
    machines.shutdown()
    return {"records": len(ended.records), "failures": list(ended.failures.values()), "lost": len(lost)}


if __name__ == "__main__":
    try:
        name = sys.argv[1]
        folder = Path(sys.argv[2])
        runs, epochs, kills = map(int, sys.argv[3:])
        seen = cluster(folder, runs, epochs) if name == "cluster" else play(name, folder, runs, epochs, kills)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.write(json.dumps(seen) + "\n")
