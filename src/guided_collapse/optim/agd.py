"""Automatic gradient descent (AGD; Bernstein et al., 2023), written from its formula.

L layers; layer l has a weight of d_l outputs and d_{l-1} inputs at k positions (k = 1 for a linear layer, the kernel size for a
convolution), and s_l = sqrt(d_l / d_{l-1}) / sqrt(k). With the Frobenius norm of each position's output x input slice,

    G = (1/L) sum_l s_l sum_positions |grad|,     eta = log((1 + sqrt(1 + 4 G)) / 2),

and every slice moves by -gain (eta/L) s_l grad/|grad|. There is no learning rate.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn


class AGD(torch.optim.Optimizer):
    """Automatic gradient descent. All parameters of all groups count as one network's layers.

    Call `init_weights()` once before training: the theory wants semi-orthogonal weights. Frozen parameters are left alone and do
    not count as layers. There is no learning rate for a scheduler to change; to schedule the step, set a group's "gain".

    Args:
        params: parameters or parameter groups; a group may have a gain of its own. At least two-dimensional.
        gain: multiplies every step; the paper on neural collapse uses 10.

    Raises:
        ValueError: for one-dimensional parameters, or a gain that is not positive.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], *, gain: float = 1.0) -> None:
        super().__init__(params, {"gain": gain})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, after checking that AGD can train it."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except Exception:
            del self.param_groups[-1]
            raise

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Makes every position's slice semi-orthogonal, times s_l."""
        for parameter in self._parameters():
            num_positions = math.prod(parameter.shape[2:])
            slices = [nn.init.orthogonal_(torch.empty(parameter.shape[:2]), generator=generator) for _ in range(num_positions)]
            parameter.copy_(layer_scale(parameter) * torch.stack(slices, dim=2).reshape(parameter.shape))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Moves every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [
            (parameter, _dense(parameter.grad), group["gain"])
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.grad is not None
        ]
        if moving:
            parameters, gradients, gains = (list(column) for column in zip(*moving, strict=True))
            automatic_step(parameters, gradients, gains, num_layers=len(self._parameters()))
        return loss

    def _parameters(self) -> list[Tensor]:
        """The layers: all parameters that are not frozen."""
        return [parameter for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]


def layer_scale(weight: Tensor) -> float:
    """s_l = sqrt(d_l / d_{l-1}) / sqrt(k) of a weight (outputs, inputs, *positions)."""
    outputs, inputs = weight.shape[:2]
    return math.sqrt(outputs / inputs / math.prod(weight.shape[2:]))


def automatic_step(parameters: list[Tensor], gradients: list[Tensor], gains: list[float], *, num_layers: int) -> None:
    """One step of AGD, in place."""
    scales = [layer_scale(parameter) for parameter in parameters]
    norms = [_slice_norms(gradient) for gradient in gradients]
    device = norms[0].device
    summed = torch.stack([(scale * norm.sum()).to(device) for scale, norm in zip(scales, norms, strict=True)]).sum()
    mean = summed / num_layers
    # The same logarithm, written so that it does not vanish for small gradients.
    step_size = torch.log1p(2 * mean / (1 + torch.sqrt(1 + 4 * mean))) / num_layers
    factors = [
        # A slice without gradient does not move.
        torch.where(norm > 0, gain * scale * step_size.to(norm.device) / norm, 0.0).to(gradient.dtype)
        for gain, scale, norm, gradient in zip(gains, scales, norms, gradients, strict=True)
    ]
    torch._foreach_addcmul_(parameters, gradients, factors, value=-1.0)


def _slice_norms(gradient: Tensor) -> Tensor:
    """The Frobenius norm of each position's output x input slice, shaped (1, 1, *positions)."""
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    return torch.linalg.vector_norm(gradient, dim=(0, 1), keepdim=True, dtype=dtype)


def _dense(gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        raise ValueError("AGD takes dense gradients; got a sparse one. Use sparse=False in the embedding.")
    return gradient


def _check_group(group: dict[str, Any]) -> None:
    if not (group["gain"] > 0 and math.isfinite(group["gain"])):
        raise ValueError(f"gain must be a positive, finite number; got {group['gain']}.")
    for parameter in group["params"]:
        if parameter.ndim < 2 or parameter.numel() == 0:
            raise ValueError(
                "AGD trains weights with at least two dimensions, none of them empty; "
                f"got a parameter of shape {tuple(parameter.shape)}. Build layers with bias=False and BatchNorm with affine=False, "
                "or give such parameters to another optimiser."
            )
