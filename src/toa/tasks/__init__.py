"""Tasks: the Task interface, three tasks, and the training loop that they share."""

from toa.tasks.anomaly import AnomalyRun
from toa.tasks.base import TASKS, Evaluation, Task
from toa.tasks.classify import ClassifyRun
from toa.tasks.config import Protocol, RunConfig, RunOptions
from toa.tasks.distributed import make_fabric
from toa.tasks.forecast import ForecastRun
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import TrainingState, TrainingStopped, time_steps, train

__all__ = [
    "TASKS",
    "AnomalyRun",
    "ClassifyRun",
    "Evaluation",
    "ForecastRun",
    "Protocol",
    "RunConfig",
    "RunOptions",
    "Task",
    "TrainingConfig",
    "TrainingState",
    "TrainingStopped",
    "make_fabric",
    "time_steps",
    "train",
]
