"""Connection to Ray: a cluster by its address, or a local Ray for the time of a run."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, OptionalDependencyError, WorkerError
from dse.search.execute._local_ray import LocalRay

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long to try to reach the address of a cluster.
_CONNECT_TIMEOUT_S = 10.0

#: Ray's address for starting a new local Ray, whatever else runs on the machine.
_LOCAL = "local"


def require_ray() -> None:
    """Checks that Ray is installed, without importing it.

    Raises:
        OptionalDependencyError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise OptionalDependencyError(
            "--executor ray needs Ray, which is not installed: pip install '.[ray]' in the "
            "project's folder, or use --executor process"
        )


def load_ray() -> Any:
    """Returns the ray module.

    Raises:
        OptionalDependencyError: Ray is not installed.
    """
    require_ray()
    import ray

    return ray


class RayCluster:
    """A connection to Ray; a context manager.

    A local Ray ends with the context, a cluster is left as it was found. A program that is
    connected to Ray already stays so.

    Args:
        address: `host:port` or `ray://host:port` of a cluster; empty for that of the environment
            variable `RAY_ADDRESS`, as inside a Ray job, and without it for a local Ray.
        workers: Processors of a local Ray.
    """

    def __init__(self, address: str, workers: int) -> None:
        self._given = address
        self._address = address or os.environ.get("RAY_ADDRESS", "") or _LOCAL
        self._workers = workers
        self._held = ExitStack()

    def __enter__(self) -> RayCluster:
        loaded = sys.modules.get("ray")
        if loaded is not None and loaded.is_initialized():
            if self._given:
                raise ConfigError(
                    f"--address {self._given}: this program is connected to Ray already; leave "
                    "the address out to use that connection, or call ray.shutdown() before"
                )
            return self
        with ExitStack() as held:
            if self._address == _LOCAL:
                require_ray()
                local = held.enter_context(LocalRay(self._workers))
                held.callback(load_ray().shutdown)
                _connect(local.address(), "the local Ray")
            else:
                _check_reachable(self._address)
                held.callback(load_ray().shutdown)
                _connect(self._address, str(self))
            self._held = held.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends a local Ray, or the connection to a cluster."""
        self._held.close()

    def __str__(self) -> str:
        return "the local Ray" if self._address == _LOCAL else f"the Ray cluster {self._address}"


def _connect(address: str, name: str) -> None:
    try:
        with _handler_kept(signal.SIGTERM):
            load_ray().init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise WorkerError(
            f"no connection to {name} ({error}); every machine needs the same versions of Python "
            "and Ray and, if the cluster has a token, that token: RAY_AUTH_MODE=token, "
            "RAY_AUTH_TOKEN=…"
        ) from error


@contextmanager
def _handler_kept(number: int) -> Iterator[None]:
    """Restores the handler of a signal, which Ray replaces."""
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


def _check_reachable(address: str) -> None:
    """Checks that a server answers at an address: Ray itself would try forever."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        if address == "auto":
            return
        raise ConfigError(
            f"--address {address}: expected host:port, ray://host:port, `auto` or `local`"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise WorkerError(
            f"nobody answers at the address {address} ({error}); `ray status` on the head node "
            "shows whether the cluster is up, `ray start --head` starts one"
        ) from error
