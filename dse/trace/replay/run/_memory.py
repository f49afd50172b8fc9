"""Limit on the memory of tensors, checked before they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dse._process.system import memory_bytes
from dse.errors import ConfigError
from dse.sharding import format_size

#: Share of what is left that a replay takes by itself.
_SHARE = 0.9


def available_bytes(torch: Any, device: str) -> int:
    """Returns the bytes that a device has left; 0 if unknown."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    return memory_bytes("MemAvailable") or 0


class MemoryBudget:
    """Keeps count of the memory of tensors.

    Args:
        limit_bytes: What they may take at any time; 0 for no limit.
        device: `cpu` or `cuda`, for messages.
    """

    def __init__(self, limit_bytes: int, device: str) -> None:
        self.limit_bytes = limit_bytes
        self._device = device
        self._taken_bytes = 0
        self.peak_bytes = 0

    @classmethod
    def of_device(cls, torch: Any, device: str, limit_bytes: int | None) -> MemoryBudget:
        """Returns the given budget, or most of what the device has left."""
        if limit_bytes is None:
            limit_bytes = int(_SHARE * available_bytes(torch, device))
        return cls(limit_bytes, device)

    def check(self, size_bytes: int, what: str) -> None:
        """Makes sure that more memory is left.

        Args:
            size_bytes: Bytes that are needed on top.
            what: The tensor, for the message.

        Raises:
            ConfigError: They do not fit.
        """
        if self.limit_bytes and self._taken_bytes + size_bytes > self.limit_bytes:
            left = max(0, self.limit_bytes - self._taken_bytes)
            raise ConfigError(
                f"{what} needs {format_size(size_bytes)}, and {format_size(left)} of "
                f"{format_size(self.limit_bytes)} are left on the {self._device}; lower "
                "--scale-batch, choose a part with --from and --to, or raise --memory-limit"
            )

    def take(self, size_bytes: int, what: str) -> None:
        """Counts memory that is taken.

        Raises:
            ConfigError: There is not so much left.
        """
        self.check(size_bytes, what)
        self._taken_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._taken_bytes)

    def release(self, size_bytes: int) -> None:
        """Counts memory that is freed."""
        self._taken_bytes -= size_bytes


class MemoryWatch:
    """Counts the memory that operators take and free.

    Memory counts once, however many tensors lie in it. The results of an operator are sized in
    advance on torch's `meta` device, so that a trace cannot take more memory than is available.

    Args:
        torch: The torch module.
        budget: The count.
    """

    def __init__(self, torch: Any, budget: MemoryBudget) -> None:
        self._torch = torch
        self._budget = budget
        self._users: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def ahead(self, call: Any, what: str, recorded_bytes: int) -> None:
        """Makes sure that the results of a call will fit.

        Args:
            call: Makes the call on the `meta` device, given a function that moves tensors there.
            what: The operator, for the message.
            recorded_bytes: Recorded size of the results, for operators without `meta` kernels.

        Raises:
            ConfigError: They do not fit.
        """
        try:
            given = call(self._as_meta)
        except Exception:  # any refusal: of the device, of the values, of the arguments
            given = None
        size_bytes = recorded_bytes if given is None else _meta_bytes(given)
        self._budget.check(size_bytes, what)

    def _as_meta(self, tensor: Any) -> Any:
        return self._torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )

    def adopt(self, tensor: Any) -> None:
        """Registers memory that the budget has counted already and that stays."""
        for key, size_bytes in _blocks(tensor):
            self._users[key] = self._users.get(key, 0) + 1
            self._sizes[key] = size_bytes

    def add(self, tensor: Any, what: str) -> None:
        """Counts a tensor that is kept from now on.

        Raises:
            ConfigError: There is no room for it.
        """
        for key, size_bytes in _blocks(tensor):
            if key not in self._users:
                self._users[key] = 0
                self._sizes[key] = size_bytes
                self._budget.take(size_bytes, what)
            self._users[key] += 1

    def remove(self, tensor: Any) -> None:
        """Counts a tensor that is freed."""
        for key, _ in _blocks(tensor):
            if key not in self._users:
                continue
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._budget.release(self._sizes.pop(key))


def _blocks(tensor: Any) -> list[tuple[int, int]]:
    """Returns identity and bytes of the memory under a tensor; a sparse one has several."""
    if tensor.is_sparse:
        return [*_blocks(tensor._indices()), *_blocks(tensor._values())]
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return []  # other layouts have no storage
    return [(int(storage._cdata), int(storage.nbytes()))]


def _meta_bytes(given: Any) -> int:
    """Returns the bytes of results on the `meta` device, memory counted once."""
    found: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, Sequence) and not isinstance(value, str):
            for item in value:
                add(item)
        elif hasattr(value, "untyped_storage"):
            found.update(_blocks(value))

    add(given)
    return sum(found.values())
