"""Shuffled training batches that a resumed run reproduces."""

from typing import Protocol

from torch import Tensor

from toa._checks import check_at_least
from toa.data.cases import Cases, FoldCases
from toa.data.windows import SeriesWindows, Windows


class Batches(Protocol):
    """Training batches. A batch depends only on epoch and step, so a resumed run sees the same batches."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch."""
        ...

    def at(self, epoch: int, step: int) -> tuple[Tensor, ...]:
        """The tensors of a step, on the training device."""
        ...


class ShuffledBatches:
    """Shuffled windows or cases; a batch depends only on the seed, the epoch and the step.

    Args:
        source: The windows or cases.
        batch_size: Windows or cases per batch.
        seed: Seed of the order.
        drop_last: Drop a last, smaller batch.
    """

    def __init__(
        self,
        source: Cases | FoldCases | SeriesWindows | Windows,
        batch_size: int,
        *,
        seed: int,
        drop_last: bool = False,
    ) -> None:
        check_at_least("batch_size", batch_size, 1)
        self._source = source
        self._size = batch_size
        self._seed = seed
        self._order: tuple[int, Tensor] | None = None
        full, rest = divmod(len(source), self._size)
        self.steps_per_epoch = full + bool(rest and not drop_last)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"batch_size must be at most the number of training windows, {len(source)}, where the last batch is "
                f"dropped, got {self._size}; lower it, or set drop_last=false."
            )

    def at(self, epoch: int, step: int) -> tuple[Tensor, ...]:
        """The tensors of a step."""
        return self.tensors(self.indices(epoch, step))

    def tensors(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The tensors of some windows or cases: inputs, targets and, if any, marks or a mask."""
        batch = self._source.batch(indices)
        return (batch,) if isinstance(batch, Tensor) else tuple(part for part in batch if part is not None)

    def indices(self, epoch: int, step: int) -> Tensor:
        """Indices of a step's windows or cases, on the device of the source."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._source.epoch_order(self._seed, epoch))
        return self._order[1][step * self._size : (step + 1) * self._size]
