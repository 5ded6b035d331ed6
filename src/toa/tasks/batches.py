"""Shuffled batches for training, found again after a stop."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from toa._checks import check_at_least


class Shuffled(Protocol):
    """Windows or cases that have a random order for each epoch."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def epoch_order(self, seed: int, epoch: int) -> Tensor:
        """The order of an epoch, which depends on seed and epoch alone."""
        ...


class ShuffledBatches:
    """Shuffled windows or cases; what a batch holds depends on the seed, the epoch and the step alone.

    Args:
        source: Where they come from.
        tensors: From places in it to the tensors of a batch.
        batch_size: How many a batch has.
        seed: Of the order.
        drop_last: Whether a last, smaller batch is left out.
    """

    def __init__(
        self,
        source: Shuffled,
        tensors: Callable[[Tensor], tuple[Tensor, ...]],
        batch_size: int,
        *,
        seed: int,
        drop_last: bool = False,
    ) -> None:
        check_at_least("batch_size", batch_size, 1)
        self.tensors = tensors
        self._source = source
        self._size = batch_size
        self._seed = seed
        self._order: tuple[int, Tensor] | None = None
        whole, rest = divmod(len(source), self._size)
        self.steps_per_epoch = whole + bool(rest and not drop_last)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"batch_size must be at most the number of training windows, {len(source)}, where the last batch is "
                f"dropped, got {self._size}; lower it, or set drop_last=false."
            )

    def at(self, epoch: int, step: int) -> tuple[Tensor, ...]:
        """The tensors of a step."""
        return self.tensors(self.places(epoch, step))

    def places(self, epoch: int, step: int) -> Tensor:
        """Where they are in the source; on a GPU if their numbers are there too."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._source.epoch_order(self._seed, epoch))
        return self._order[1][step * self._size : (step + 1) * self._size]
