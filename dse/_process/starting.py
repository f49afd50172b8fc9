"""Starting processes: forked from a server that has imported what they need, where that is safe.

The server holds nothing of this process and runs no thread, so forks of it are safe. It is one for
the whole process and imports when it is started: what it lacks, processes import for themselves.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
import multiprocessing
from multiprocessing.connection import wait
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING

from dse._process.interrupts import shield_children_from_interrupts
from dse._process.system import environment
from dse.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

#: Names of our processes begin with it.
OWN_PREFIX = "dse-"

#: Exit code of a process whose starter is gone.
_ORPHANED = 1

#: Held while processes start: what is changed meanwhile belongs to all threads.
_STARTING = threading.RLock()


def start_method(preloaded: Sequence[str]) -> SpawnContext | ForkServerContext:
    """Returns how processes start: forked, or spawned where libraries do not survive that (macOS).

    Args:
        preloaded: Modules that the server imports, if it does not run yet.
    """
    if sys.platform == "darwin" or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dse._process.fork_server", *preloaded])
    return context


@contextmanager
def starting(content: bytes) -> Iterator[None]:
    """Shields processes that the block starts from interrupts until they unblock them.

    They import the calling script only if `content` needs something that it defines.

    Args:
        content: What is sent to them, pickled.
    """
    with ExitStack() as settings:
        settings.enter_context(_STARTING)
        settings.enter_context(shield_children_from_interrupts())
        settings.enter_context(_our_path())
        if b"__main__" not in content:
            settings.enter_context(_no_script())
        yield


def start(process: BaseProcess) -> None:
    """Starts a process.

    Raises:
        WorkerError: The system has no room for another one.
    """
    try:
        process.start()
    except (EOFError, OSError) as error:  # of our server; of the system, where there is none
        raise WorkerError(
            "the system cannot start another process; end other programs, raise its limits "
            "(`ulimit -n`, `ulimit -u`, `ulimit -v`), or ask for fewer processes"
        ) from error


def end_with_starter() -> None:
    """Ends this process when its parent exits, whatever it is doing then."""
    threading.Thread(target=_wait_for_starter, daemon=True).start()


def _wait_for_starter() -> None:
    starter = multiprocessing.parent_process()
    if starter is not None:
        wait([starter.sentinel])
        os._exit(_ORPHANED)


@contextmanager
def _our_path() -> Iterator[None]:
    """Makes a server that is started in the block import from where this process does.

    It imports before it is sent this path, and would look into the working directory first.
    """
    places = [place or _working_directory() for place in sys.path]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PYTHONSAFEPATH": "1"}
    with environment(ours):
        yield


def _working_directory() -> str:
    """Returns the working directory; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@contextmanager
def _no_script() -> Iterator[None]:
    """Keeps processes that are started meanwhile from importing the calling script.

    Without a guard it would start everything again, and what is typed or piped cannot be imported.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
