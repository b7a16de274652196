"""Functions as torch operations, which compilers do not look into."""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}
"""What our operations do, by operation: for who wants to look into them."""


class Operation(Generic[Arguments, Result]):
    """A function as the torch operation `guided_collapse::<name>`.

    It does what `torch.library.custom_op` does, which would load torch's compiler at the first call: seconds, for those who do not
    compile.

    Args:
        name: of the operation.
        function: annotated with types that torch knows; it must not change its arguments, nor return one of them.
    """

    def __init__(self, name: str, function: Callable[Arguments, Result]) -> None:
        self._qualified_name = f"guided_collapse::{name}"
        torch.library.define(self._qualified_name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(self._qualified_name, "default", function)
        self.function = function
        self._call = getattr(torch.ops.guided_collapse, name).default
        IMPLEMENTATIONS[self._call] = function

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """The result, with gradient if one was registered.

        Raises:
            NotImplementedError: under a transform of torch.func, for which torch gives such operations no rule.
        """
        if is_transformed():
            raise NotImplementedError(
                'the solver "factors" and sums over processes take no transform of torch.func (grad, vmap, jacrev, ...); got one. '
                'Use torch.autograd.grad or backward(), or solver="products".'
            )
        result: Result = self._call(*args, **kwargs)
        return result

    def register_fake(self, function: Function) -> Function:
        """Takes what gives empty results of the right shapes, for tracing."""
        torch.library.register_fake(self._qualified_name, function)
        return function

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None) -> None:
        """Takes the gradient, as a function of the context and the gradients of the results."""
        torch.library.register_autograd(self._qualified_name, backward, setup_context=setup_context)


def constant_in_graphs(function: Function) -> Function:
    """Marks a function of plain values whose result compilers take as it is, instead of tracing how it comes about.

    It does what `torch.compiler.assume_constant_result` does, which would load torch's compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_plain(tensor: Tensor) -> bool:
    """Whether a function of the tensor can be called as it is: nobody traces, counts or transforms operations."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not is_transformed()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def is_transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is at work, outside of a compiler."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def refusal_of_second_derivatives(what: str, way_out: str) -> Callable[..., Any]:
    """The gradient of a gradient that has none: it says so, and what to do.

    Args:
        what: can be differentiated once.
        way_out: one sentence.
    """

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            f"{what} can be differentiated once, not twice; got a second derivative (create_graph=True). {way_out}"
        )

    return refuse


def operation(name: str) -> Callable[[Callable[Arguments, Result]], Operation[Arguments, Result]]:
    """Makes a function an operation of that name."""
    return lambda function: Operation(name, function)
