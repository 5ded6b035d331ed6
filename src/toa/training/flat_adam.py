"""AdamW on one vector of all weights, with moments in 16 bits, in memory exactly as in a checkpoint.

The parameters of a model become parts of one vector, so that a step is a dozen operations whatever the number of
parameters. Moments are bfloat16, which has the range of float32: with beta2 of at most 0.99 a step changes them by more
than their rounding. A run that is saved and resumed therefore equals one that was not stopped, bit by bit.

Alphabet: W weights of the vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toa._checks import ArgumentError, check_at_least, check_fraction, check_positive
from toa.nn import SequenceOperator

# parameters begin at multiples of this many weights: kernels read aligned memory
_ALIGNMENT = 64
# largest decay of the second moment whose steps are larger than the rounding of bfloat16
MOST_BETA2 = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamConfig:
    """Options of the update.

    Args:
        weight_decay: Decoupled; of matrices of linear layers, not of biases, norms and operators.
        operator_rate: Factor of the operators' learning rate.
        clip_norm: Largest norm of the gradient.
    """

    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.01
    operator_rate: float = 1.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            check_fraction(name, getattr(self, name))
        if self.beta2 > MOST_BETA2:
            raise ArgumentError(
                "beta2",
                f"be at most {MOST_BETA2}",
                f"{self.beta2}: with more, a step is smaller than the rounding of moments in 16 bits",
                "lower it",
            )
        check_at_least("weight_decay", self.weight_decay, 0.0)
        check_positive("operator_rate", self.operator_rate)
        check_positive("clip_norm", self.clip_norm)


class FlatAdam:
    """The weights of a model as one vector, and their update.

    Attributes:
        weights: (W,), float32; the parameters of the model are parts of it.
        gradient: (W,), float32; likewise.
        first, second: Moments (W,), bfloat16.
    """

    def __init__(self, model: nn.Module, config: AdamConfig) -> None:
        self.config = config
        parameters = list(model.parameters())
        device = parameters[0].device
        starts = [0]
        for parameter in parameters:
            starts.append(starts[-1] + -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT)
        count = starts[-1]
        self.weights = torch.zeros(count, device=device)
        self.gradient = torch.zeros(count, device=device)
        self.first = torch.zeros(count, device=device, dtype=torch.bfloat16)
        self.second = torch.zeros(count, device=device, dtype=torch.bfloat16)
        # factors of the learning rate and of the decay per weight
        self._rates = torch.ones(count, device=device)
        self._decay = torch.zeros(count, device=device)
        operators = {
            parameter
            for module in model.modules()
            if isinstance(module, SequenceOperator)
            for parameter in module.parameters()
        }
        matrices = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
        with torch.no_grad():
            for parameter, start in zip(parameters, starts[:-1], strict=True):
                part = slice(start, start + parameter.numel())
                self.weights[part] = parameter.flatten()
                parameter.data = self.weights[part].view(parameter.shape)
                parameter.grad = self.gradient[part].view(parameter.shape)
                if parameter in operators:
                    self._rates[part] = config.operator_rate
                if parameter in matrices:
                    self._decay[part] = config.weight_decay

    def numbers(self, rate: float, updates: int) -> tuple[float, float, float]:
        """What an update reads from the device: the learning rate, and the corrections of both moments.

        Args:
            updates: Updates since the moments were zero, this one included.
        """
        check_at_least("updates", updates, 1)
        return rate, 1.0 / (1.0 - self.config.beta1**updates), 1.0 / (1.0 - self.config.beta2**updates)

    @torch.no_grad()
    def update(self, numbers: Tensor) -> None:
        """Update the weights by the gradient, and set the gradient to zero; `numbers` (3,) are those of `numbers`."""
        config = self.config
        rate, first_correction, second_correction = numbers.unbind()
        norm = self.gradient.norm()
        self.gradient.mul_((config.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        first = self.first.float().lerp_(self.gradient, 1.0 - config.beta1)
        second = self.second.float().lerp_(self.gradient.square(), 1.0 - config.beta2)
        self.first.copy_(first)
        self.second.copy_(second)
        step = (first * first_correction) / ((second * second_correction).sqrt_() + 1e-8)
        step.addcmul_(self._decay, self.weights)
        self.weights.sub_(step.mul_(self._rates).mul_(rate))
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor]:
        """Vectors of one length that a checkpoint holds."""
        return {"weights": self.weights, "first": self.first, "second": self.second}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the result of `state`."""
        for name, vector in self.state().items():
            saved = state[name]
            if saved.shape != vector.shape or saved.dtype != vector.dtype:
                raise ArgumentError(
                    name,
                    f"be {vector.dtype} of shape {tuple(vector.shape)}",
                    f"{saved.dtype} of shape {tuple(saved.shape)}",
                    "the checkpoint is of another model",
                )
            vector.copy_(saved)
