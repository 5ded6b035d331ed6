"""Where lists of runs are carried out, by name; the records are the same whichever it is."""

from collections.abc import Iterable, Mapping

from toa._checks import check_at_least, check_choice
from toa.experiments.pool import run_pool
from toa.experiments.ray_crew import run_ray
from toa.experiments.run import Job
from toa.experiments.runner import Outcome, Place, Watcher, run_jobs

EXECUTORS = ("process", "pool", "ray")
# workers of a pool, if nobody says how many
POOL_WORKERS = 2


def execute(
    executor: str,
    jobs: Iterable[Job],
    place: Place,
    *,
    workers: int | None = None,
    address: str | None = None,
    forgive: Mapping[str, float] | None = None,
    watch: Watcher | None = None,
) -> Outcome:
    """Run jobs; arguments and errors are those of `run_jobs`.

    Args:
        executor: "process" for this one, one run after another; "pool" for worker processes of this machine; "ray" for
            workers of Ray, here or in a cluster.
        jobs: What to run.
        place: Where.
        workers: Of a pool or of Ray; two, and as many as Ray has devices, if None.
        address: Of a running Ray; None starts one.
        forgive: Failures that are tried again.
        watch: Told of everything that happens.
    """
    check_executor(executor, workers=workers, address=address)
    if executor == "ray":
        return run_ray(jobs, place, workers=workers, address=address, forgive=forgive, watch=watch)
    if executor == "pool":
        return run_pool(jobs, place, workers=at_once(executor, workers), forgive=forgive, watch=watch)
    return run_jobs(jobs, place, forgive=forgive, watch=watch)


def at_once(executor: str, workers: int | None) -> int:
    """How many runs there are at a time, as far as is known before any begins."""
    return workers or (POOL_WORKERS if executor == "pool" else 1)


def check_executor(executor: str, *, workers: int | None, address: str | None) -> None:
    """Refuse an unknown executor, and what one does not have."""
    check_choice("executor", executor, EXECUTORS)
    if workers is not None:
        check_at_least("workers", workers, 1)
    for name, value, having in (("workers", workers, ("pool", "ray")), ("address", address, ("ray",))):
        if value is not None and executor not in having:
            raise ValueError(f"{name} must be left out with the executor {executor!r}, which has none, got {value}.")
