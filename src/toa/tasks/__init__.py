"""Tasks: one training loop, and what is learned and measured with it."""

from toa.tasks.demixing import DemixingConfig, train_demixer
from toa.tasks.training import TrainingConfig, TrainingStopped, train

__all__ = ["DemixingConfig", "TrainingConfig", "TrainingStopped", "train", "train_demixer"]
