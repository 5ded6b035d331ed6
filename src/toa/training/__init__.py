"""Tasks: the Task interface, three tasks, and the training loop that they share."""

from toa.training.anomaly import AnomalyRun
from toa.training.base import TASKS, Evaluation, Task
from toa.training.classify import ClassifyRun
from toa.training.config import RunConfig, RunOptions
from toa.training.distributed import make_fabric
from toa.training.forecast import ForecastRun
from toa.training.loop import TrainingState, TrainingStopped, time_steps, train
from toa.training.optimization import TrainingConfig

__all__ = [
    "TASKS",
    "AnomalyRun",
    "ClassifyRun",
    "Evaluation",
    "ForecastRun",
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
