"""Iterations counted by the steps of an optimizer."""

from __future__ import annotations

import functools
import os
import threading
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class OptimizerSteps:
    """Calls back after each step of the first optimizer that steps in this process.

    A hook shared by all optimizers finds the first one. Hooks run inside the profiler's annotation
    of the optimizer's step, though, and a recording that starts or stops there would cut it. So
    from then on the optimizer's `step` is wrapped, and the callback runs outside the annotation.

    Args:
        called: The callback.
    """

    def __init__(self, called: Callable[[], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._called: Callable[[], None] | None = called
        self._optimizer: Any = None
        self._wrapper: Any = None
        self._replaced: Any = None
        self._process = os.getpid()
        self._thread: int | None = None
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def stop(self) -> None:
        """Restores the optimizer; must not be called from inside a hook."""
        self._called = None
        self._handle.remove()
        self._unwrap()

    def silence(self) -> None:
        """Stops calling back; may be called from inside a hook."""
        self._called = None

    def _stepped(self, optimizer: Any, args: object, kwargs: object) -> None:
        if self._called is None:
            return
        if self._optimizer is not None and os.getpid() != self._process:
            # In a child forked from a training process: only the parent is recorded.
            return
        if self._optimizer is None:
            self._process = os.getpid()
            self._thread = threading.get_ident()
            self._wrap(optimizer)
            self._called()

    def _wrap(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._replaced = vars(optimizer).get("step")
        step = optimizer.step

        @functools.wraps(step)
        def stepping(_: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self._after()
            return result

        # Schedulers take the function out of the bound method.
        self._wrapper = types.MethodType(stepping, optimizer)
        optimizer.step = self._wrapper

    def _after(self) -> None:
        mine = os.getpid() == self._process and threading.get_ident() == self._thread
        if self._called is not None and mine:
            self._called()

    def _unwrap(self) -> None:
        # A scheduler may have wrapped the wrapper since; it then stays and passes calls on.
        if self._optimizer is None or vars(self._optimizer).get("step") is not self._wrapper:
            return
        if self._replaced is None:
            del self._optimizer.step
        else:
            self._optimizer.step = self._replaced
        self._wrapper = self._replaced = None
