"""Connection to Ray: a cluster by its address, or a local Ray for the time of a run."""

from __future__ import annotations

from contextlib import contextmanager
import importlib.util
import logging
import os
from pathlib import Path
import shutil
import signal
import socket
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, OptionalDependencyError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

#: Shared memory of a local Ray: evaluations exchange little but the problem, and what does not
#: fit goes to disk.
_OBJECT_STORE_BYTES = 256 * 2**20

#: A socket's path has to fit into 107 bytes, and Ray adds about 65 to its folder.
_LONGEST_FOLDER = 40

#: How long to try to reach the address of a cluster.
_CONNECT_TIMEOUT_S = 10.0

#: Environment of a local Ray. Ray binds its ports, which run code for anyone who connects, to the
#: loopback interface only where it takes a cluster of several machines to be impossible; it reads
#: that when it is imported.
_LOCAL_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

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

    A local Ray has no dashboard, sends no usage statistics, keeps its logs in a temporary folder
    and ends with the context; it listens on the loopback interface only unless the program
    imported Ray before. A cluster is left as it was found. A program that is connected to Ray
    already stays so.

    Args:
        address: `host:port` or `ray://host:port` of a cluster; empty for that of the environment
            variable `RAY_ADDRESS`, as inside a Ray job, and without it for a local Ray.
        workers: Processors of a local Ray.
    """

    def __init__(self, address: str, workers: int) -> None:
        self._given = address
        self._address = address or os.environ.get("RAY_ADDRESS", "") or _LOCAL
        self._workers = workers
        self._folder: Path | None = None
        self._connected = False
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> RayCluster:
        if self._address == _LOCAL:
            self._environment = {name: os.environ.get(name) for name in _LOCAL_ENVIRONMENT}
            os.environ.update(_LOCAL_ENVIRONMENT)
        try:
            self._enter(load_ray())
        except BaseException:
            self._close()
            raise
        return self

    def _enter(self, ray: Any) -> None:
        if ray.is_initialized():
            if self._given:
                raise ConfigError(
                    f"--address {self._given}: this program is connected to Ray already; leave "
                    "the address out to use that connection, or call ray.shutdown() before"
                )
            return
        self._connected = True
        with _handler_kept(signal.SIGTERM):
            if self._address == _LOCAL:
                self._start(ray)
            else:
                self._connect(ray)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends a local Ray, or the connection to a cluster."""
        self._close()

    def __str__(self) -> str:
        return "the local Ray" if self._address == _LOCAL else f"the Ray cluster {self._address}"

    def _start(self, ray: Any) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="dse-ray-", dir=_short_folder()))
        try:
            ray.init(
                address=_LOCAL,
                num_cpus=self._workers,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _temp_dir=str(self._folder),
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise WorkerError(
                f"a local Ray does not start ({error}); use --executor process"
            ) from error

    def _connect(self, ray: Any) -> None:
        _check_reachable(self._address)
        try:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            raise WorkerError(
                f"no connection to the Ray cluster {self._address} ({error}); every machine needs "
                "the same versions of Python and Ray, and where the cluster has a token that too: "
                "RAY_AUTH_MODE=token, RAY_AUTH_TOKEN=…"
            ) from error

    def _close(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment = {}
        if not self._connected:
            return
        self._connected = False
        load_ray().shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _handler_kept(number: int) -> Iterator[None]:
    """Restores the handler of a signal, which Ray replaces."""
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


def _short_folder() -> str | None:
    """Returns a parent folder with a path short enough for Ray; None for the default one."""
    return (
        None
        if len(tempfile.gettempdir()) + len("/dse-ray-12345678") <= _LONGEST_FOLDER
        else "/tmp"
    )


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
