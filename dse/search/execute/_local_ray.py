"""A local Ray, kept by a process of its own that no signal for this program reaches.

Ray's server ends when it is sent SIGTERM, and Ray then ends every program that is connected to it
at once. A terminal, a batch system or `timeout` signals whole groups of processes: Ray would be
gone before the program has written what it found.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack, contextmanager, suppress
import logging
import os
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any, ClassVar

from dse._process.starting import OWN_PREFIX, start_method, starting
from dse._process.system import environment
from dse.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection

#: Ray binds its ports, which run code for anyone who connects, to the loopback interface only
#: where it takes a cluster of several machines to be impossible. It reads that when imported.
_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

#: Whether Ray asks for a token: also read when it is imported.
_AUTHENTICATION = "RAY_AUTH_MODE"

#: Shared memory: evaluations exchange little but the problem, and what does not fit goes to disk.
_OBJECT_STORE_BYTES = 256 * 2**20

#: A socket's path has to fit into 107 bytes, and Ray adds about 65 to its folder.
_LONGEST_FOLDER = 40

#: What stays away from Ray besides the signals that all our processes begin without.
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class LocalRay:
    """A local Ray without dashboard and usage statistics; a context manager.

    It listens on the loopback interface and asks for a token where Ray knows tokens, unless
    `RAY_AUTH_MODE` says otherwise. Its logs are in a temporary folder. It ends with the context or
    with this process, however that ends.

    Args:
        workers: Number of processors.
    """

    #: Whether this process imports Ray with the environment of a local one.
    _prepared: ClassVar[bool] = False

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._held = ExitStack()

    def __enter__(self) -> LocalRay:
        """Starts it; this process may import Ray meanwhile.

        Raises:
            ConfigError: This program imported Ray before, so it would not find a local one.
        """
        if "ray" in sys.modules and not LocalRay._prepared:
            raise ConfigError(
                "this program has already imported Ray, so a local Ray could not be confined "
                "to this machine; call ray.init() first to use that connection, or do not "
                "import Ray"
            )
        LocalRay._prepared = True
        with ExitStack() as held:
            held.enter_context(_environment())
            folder = tempfile.mkdtemp(prefix="dse-ray-", dir=_short_folder())
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            context = start_method([])
            self._pipe, theirs = context.Pipe()
            held.callback(self._pipe.close)
            arguments = (theirs, self._workers, folder, dict(os.environ))
            process = context.Process(target=_keep_ray, args=arguments, name=f"{OWN_PREFIX}ray")
            with theirs, starting(b""):
                process.start()
            held.callback(process.join)
            held.callback(self._pipe.close)
            self._held = held.pop_all()
        # Before processes are joined when the interpreter ends: this one waits for its pipe.
        atexit.register(self._held.close)
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends it and removes its folder."""
        self._held.close()
        atexit.unregister(self._held.close)

    def address(self) -> str:
        """Waits for its start; returns its address.

        Raises:
            WorkerError: It does not start.
        """
        try:
            address, problem = self._pipe.recv()
        except EOFError:
            address, problem = "", "its process ended"
        if problem:
            raise WorkerError(f"cannot start a local Ray ({problem}); use --executor process")
        return str(address)


@contextmanager
def _environment() -> Iterator[None]:
    """Sets the environment of a local Ray, and of this process that connects to it."""
    ours = {_AUTHENTICATION: os.environ.get(_AUTHENTICATION, "token"), **_ENVIRONMENT}
    with environment(ours):
        yield


def _keep_ray(pipe: Connection, workers: int, folder: str, environment: Mapping[str, str]) -> None:
    """Runs a local Ray until the other end of the pipe is closed.

    Args:
        pipe: Is sent the address and the reason why there is none.
        workers: Number of processors.
        folder: Ray's folder.
        environment: Environment of Ray and of its workers.
    """
    # All that Ray starts inherits both: it is ended at once, and by nobody else.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    os.environ.clear()
    os.environ.update(environment)
    try:
        pipe.send(_started(workers, folder))
        with suppress(EOFError, OSError):
            pipe.recv()
    finally:
        # Ray would take seconds to end by itself, and leave agents for a minute if it did not.
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


def _started(workers: int, folder: str) -> tuple[str, str]:
    import ray

    try:
        connection: Any = ray.init(
            address="local",
            num_cpus=workers,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            _temp_dir=folder,
        )
    except (OSError, RuntimeError, ValueError) as error:
        return "", str(error) or type(error).__name__
    return connection.address_info["gcs_address"], ""


def _short_folder() -> str | None:
    """Returns a parent folder with a path short enough for Ray; None for the default one."""
    return (
        None
        if len(tempfile.gettempdir()) + len("/dse-ray-12345678") <= _LONGEST_FOLDER
        else "/tmp"
    )
