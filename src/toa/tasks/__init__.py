"""Tasks: one training loop, and what is learned and measured with it."""

from toa.tasks.demixing import DemixingConfig, train_demixer
from toa.tasks.optimization import TrainingConfig
from toa.tasks.training import TrainingState, TrainingStopped, make_fabric, time_steps, train

__all__ = [
    "DemixingConfig",
    "TrainingConfig",
    "TrainingState",
    "TrainingStopped",
    "make_fabric",
    "time_steps",
    "train",
    "train_demixer",
]
