"""Forward and backward passes over the parts of a batch, several at a time on a CPU.

The models here are small and the texts short, so that a pass by one thread keeps a core busier than
two threads in one pass do: measured on two cores, twice as many texts a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

Pass = Callable[[], Tensor]


class Passes:
    """Runs the passes of a batch; the result does not depend on which thread is faster.

    Args:
        module: Whose parameters are trained.
        context: Made by each thread around its passes, such as autocast.
    """

    def __init__(
        self, module: nn.Module, context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._module = module
        self._context = context
        self._workers = torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, passes: Sequence[Pass]) -> Tensor:
        """Return the passes' results, each (n, ...), joined in order, with their graph."""
        on_cpu = next(self._module.parameters()).device.type == "cpu"
        if self._workers < 2 or len(passes) < 2 or not on_cpu:
            with self._context():
                return torch.cat([one() for one in passes])
        if not torch.is_grad_enabled():
            return self.joined(self.forward(passes, graph=False))
        trained = [p for p in self._module.parameters() if p.requires_grad]
        # torch leaves `apply` without types.
        joined: Tensor = _Joined.apply(self, passes, *trained)  # type: ignore[no-untyped-call]
        return joined

    def forward(self, passes: Sequence[Pass], *, graph: bool) -> list[list[Tensor]]:
        """Run each thread's share of the passes: every so manieth, as they differ in length."""

        def share(number: int) -> list[Tensor]:
            with torch.set_grad_enabled(graph), self._context():
                return [one() for one in passes[number :: self._workers]]

        return list(self._threads().map(share, range(self._workers)))

    def backward(
        self, shares: list[list[Tensor]], gradients: list[list[Tensor]], trained: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradient of each trained parameter, summed in a fixed order."""

        def share(number: int) -> tuple[Tensor | None, ...]:
            if not shares[number]:
                return (None,) * len(trained)
            return torch.autograd.grad(
                shares[number], trained, gradients[number], allow_unused=True
            )

        found = list(self._threads().map(share, range(self._workers)))
        return [_sum(parts) for parts in zip(*found, strict=True)]

    def joined(self, shares: list[list[Tensor]]) -> Tensor:
        """Put the shares' results back in order."""
        return torch.cat([shares[i % len(shares)][i // len(shares)] for i in range(_count(shares))])

    def parted(self, joined: Tensor, shares: list[list[Tensor]]) -> list[list[Tensor]]:
        """Part something shaped like the joined results as the shares are."""
        sizes = [len(shares[i % len(shares)][i // len(shares)]) for i in range(_count(shares))]
        parts = torch.split(joined, sizes)
        return [list(parts[number :: len(shares)]) for number in range(len(shares))]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._workers, initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool


class _Joined(Function):
    @staticmethod
    def forward(ctx: Any, runner: Passes, passes: Sequence[Pass], *trained: Tensor) -> Tensor:
        ctx.runner, ctx.trained = runner, trained
        ctx.shares = runner.forward(passes, graph=True)
        return runner.joined([[one.detach() for one in share] for share in ctx.shares])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        parts = ctx.runner.parted(gradients[0], ctx.shares)
        return None, None, *ctx.runner.backward(ctx.shares, parts, ctx.trained)


def _count(shares: list[list[Tensor]]) -> int:
    return sum(map(len, shares))


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).sum(0) if known else None
