"""Custom torch operations, opaque to torch.compile, and matrix products in full float32 precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}
"""The Python function of each operation, for tools that count the computations inside an operation."""


class Operation(Generic[Arguments, Result]):
    """A function registered as the torch operation `guided_collapse::<name>`.

    Does what `torch.library.custom_op` does, without importing torch's compiler on the first call, which takes seconds. The
    function needs type annotations from which torch can infer a schema, and must neither mutate nor return its arguments.
    """

    def __init__(self, name: str, function: Callable[Arguments, Result]) -> None:
        self._qualified_name = f"guided_collapse::{name}"
        torch.library.define(self._qualified_name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(self._qualified_name, "default", function)
        self.function = function
        self._call = getattr(torch.ops.guided_collapse, name).default
        IMPLEMENTATIONS[self._call] = function

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Returns the operation's result, differentiable if a gradient was registered. Raises an error in torch.func transforms."""
        if is_transformed():
            raise NotImplementedError(
                'the solver "factors" and sums over processes do not support torch.func transforms (grad, vmap, jacrev, ...). '
                'Use torch.autograd.grad or backward(), or solver="products".'
            )
        result: Result = self._call(*args, **kwargs)
        return result

    def register_fake(self, function: Function) -> Function:
        """Registers a function that returns empty results of the right shapes, for tracing."""
        torch.library.register_fake(self._qualified_name, function)
        return function

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None) -> None:
        """Registers the backward pass, a function of the context and the gradients of the results."""
        torch.library.register_autograd(self._qualified_name, backward, setup_context=setup_context)


def operation(name: str) -> Callable[[Callable[Arguments, Result]], Operation[Arguments, Result]]:
    """Returns a decorator that registers a function as the operation of this name."""
    return lambda function: Operation(name, function)


class DifferentiableOperation:
    """A pair of operations, `<name>` and `<name>_backward`: the first result is differentiable, once, in the first argument.

    `saved` returns the tensors to save for the backward pass, given the tuples of arguments and results; the first saved tensor
    must have the shape and dtype of the first argument. `way_out` ends the error message for double differentiation.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., tuple[Tensor, ...]],
        fake: Callable[..., tuple[Tensor, ...]],
        saved: Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Tensor, ...]],
        backward: Callable[..., Tensor],
        *,
        way_out: str,
    ) -> None:
        self.saved = saved
        self.forward, self.backward = Operation(name, forward), Operation(f"{name}_backward", backward)
        self.forward.register_fake(fake)
        self.forward.register_autograd(self.gradient, setup_context=self.remember)
        self.backward.register_fake(lambda grad, first, *_: torch.empty_like(first, memory_format=torch.contiguous_format))

        def refuse(*_: Any) -> Any:
            raise NotImplementedError(f"{name} can be differentiated once, not twice; got create_graph=True. {way_out}")

        self.backward.register_autograd(refuse)
        # Bypasses torch's dispatcher, which takes as long as a solve with few classes.
        self.direct = ClosedGradient(self._directly, lambda grad, needed, _, **options: (backward(grad, *needed),))

    def __call__(self, first: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """Returns the results of `forward`. Raises an error in forward mode, torch.func transforms and double backward."""
        if not is_plain(first):
            if not torch.compiler.is_compiling() and forward_ad.unpack_dual(first).tangent is not None:  # type: ignore[no-untyped-call]
                raise NotImplementedError(
                    "the nearest frame has a reverse-mode gradient only; got a forward-mode derivative. "
                    'Use backward(), or solver="products".'
                )
            return self.forward(first, *others)
        constants: list[Tensor] = []
        return self.direct(first, others=others, constants=constants), *constants

    def _directly(self, first: Tensor, *, others: tuple[Any, ...], constants: list[Tensor]) -> tuple[Tensor, ...]:
        if is_recorded(first):  # about to be differentiated twice, which the operation refuses
            return self.forward(first, *others)
        results = self.forward.function(first, *others)
        # Returned through a list, because torch spends time on every result of an autograd function.
        constants.extend(results[1:])
        return results[0], *self.saved((first, *others), results)

    def remember(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Saves what the backward pass needs."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*self.saved(inputs, output))
        ctx.num_others = len(inputs) - 1

    def gradient(self, ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns the gradient with respect to the first argument, and None for every other argument."""
        grad = None if grad is None else self.backward(grad, *ctx.saved_tensors)
        return grad, *(None,) * ctx.num_others


class ClosedGradient:
    """A function of tensors with a handwritten backward pass that is cheaper than autograd's.

    Positional arguments are tensors; keyword arguments are constants. `forward` returns the result, followed by tensors to save.
    `backward` takes the gradient of the result, the list of saved tensors, and all arguments, and returns one gradient per tensor,
    or None for a tensor that requires no gradient. Under torch.compile, under transforms of torch.func, in forward mode and for
    second derivatives, torch differentiates `forward` itself.
    """

    def __init__(self, forward: Callable[..., tuple[Tensor, ...]], backward: Callable[..., tuple[Tensor | None, ...]]) -> None:
        self.forward, self.backward = forward, backward

    def __call__(self, *tensors: Tensor, **constants: Any) -> Tensor:
        """Returns the result, differentiable in every tensor."""
        if _is_traced() or not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return self.forward(*tensors, **constants)[0]
        result: Tensor = _ByClosedGradient.apply(self, constants, *tensors)  # type: ignore[no-untyped-call]
        return result


class _ByClosedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: ClosedGradient, constants: dict[str, Any], *tensors: Tensor) -> Tensor:
        result, *needed = function.forward(*tensors, **constants)
        ctx.function, ctx.constants, ctx.num_tensors = function, constants, len(tensors)
        ctx.save_for_backward(*tensors, *needed)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors[: ctx.num_tensors], list(ctx.saved_tensors[ctx.num_tensors :])
        if not torch.is_grad_enabled():
            return None, None, *ctx.function.backward(grad, needed, *tensors, **ctx.constants)
        result = ctx.function.forward(*tensors, **ctx.constants)[0]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, grad, create_graph=True))
        return None, None, *(next(found) if tensor.requires_grad else None for tensor in tensors)


def is_recorded(tensor: Tensor) -> bool:
    """Returns whether autograd, a compiler or a transform records operations on the tensor."""
    return torch.is_grad_enabled() and (tensor.requires_grad or _is_traced())


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or is_transformed() or forward_ad._current_level >= 0


def is_plain(tensor: Tensor) -> bool:
    """Returns whether operations on the tensor can bypass torch's dispatcher: nothing traces, counts or transforms them."""
    return type(tensor) in (Tensor, nn.Parameter) and not _is_traced() and torch._C._len_torch_dispatch_stack() == 0


def is_transformed() -> bool:
    """Returns whether a torch.func transform (grad, vmap, jvp, ...) is active; always False during compilation."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def constant_in_graphs(function: Function) -> Function:
    """Marks a function as `torch.compiler.assume_constant_result` does, but without importing torch's compiler, and returns it."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which operations on the device keep the dtype of their inputs."""
    # `torch.autocast` raises for devices without autocast.
    is_active = _has_autocast(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if is_active else nullcontext()


@constant_in_graphs
def _has_autocast(device_type: str) -> bool:
    """Returns whether this device type has autocast; a constant in graphs, because torch.compile in torch 2.6 cannot trace it."""
    return torch.amp.is_autocast_available(device_type)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Returns left @ right in the full precision of the dtype, even if the user allows TF32 or bfloat16 products."""
    if left.dtype != torch.float32 or float32_is_float32():
        return torch.mm(left, right)
    # torch.compile rejects an autograd function that receives the same tensor twice.
    result: Tensor = _ProductOfParts.apply(left, right.clone() if right is left else right)  # type: ignore[no-untyped-call]
    return result


def add_product(beta: float, summand: Tensor, alpha: float, left: Tensor, right: Tensor) -> Tensor:
    """Returns beta summand + alpha left @ right, as precisely as `product`."""
    if left.dtype != torch.float32 or float32_is_float32():
        return torch.addmm(summand, left, right, beta=beta, alpha=alpha)
    return beta * summand + alpha * product(left, right)


@constant_in_graphs
def float32_is_float32() -> bool:
    """Returns whether products of float32 matrices are computed in float32 (see `torch.set_float32_matmul_precision`)."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # Raised once a lower precision has been set through the newer, per-backend switches.
        return False


class _ProductOfParts(torch.autograd.Function):
    """The product of two float32 matrices, computed from three bfloat16 parts of each.

    Products of the entries of parts are exact at every precision setting. The function has no forward-mode derivative, because
    torch.compile rejects functions that define one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        (first, second, third), (above, middle, below) = _parts(left), _parts(right)
        small = torch.mm(first, below) + torch.mm(second, middle) + torch.mm(third, above)
        return torch.mm(first, above) + (torch.mm(first, middle) + torch.mm(second, above) + small)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return product(grad, right.T), product(left.T, grad)


def _parts(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns three float32 matrices that sum to the matrix and whose entries are representable in bfloat16."""
    first = matrix.to(torch.bfloat16).to(matrix.dtype)
    rest = matrix - first
    second = rest.to(torch.bfloat16).to(matrix.dtype)
    return first, second, rest - second
