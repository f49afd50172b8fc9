"""Ctrl-C at moments at which it must wait."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dse._process.interrupts import defer_interrupts, shield_children_from_interrupts
from tests.conftest import ROOT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_end_of_a_step(number):
    done = []

    def handler(number, frame):
        done.append("came")
        raise TimeoutError

    def step():
        with defer_interrupts():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append("written")
            done.append("remembered")

    former = signal.signal(number, handler)
    try:
        with pytest.raises(TimeoutError):
            step()
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, former)
    assert done == ["written", "remembered", "came"]


def test_what_a_step_raises_is_not_lost():
    former = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="full"), defer_interrupts():
        raise ValueError("full")
    assert signal.getsignal(signal.SIGINT) is former


def test_other_threads_get_no_signals_and_need_nothing():
    from concurrent.futures import ThreadPoolExecutor

    def step():
        with defer_interrupts():
            return "done"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(step).result() == "done"


def blocked_signals(pipe):
    """What a new process finds blocked."""
    pipe.send(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def test_new_processes_find_interrupts_blocked():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=blocked_signals, args=(theirs,))
    with shield_children_from_interrupts():
        process.start()
    assert ours.recv() >= {signal.SIGINT, signal.SIGTERM}
    process.join()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


#: A program that asks the server of our workers for a process of its own.
GUEST = """
import multiprocessing
from dse.search.execute import ProcessExecutor, _process
from tests.process.test_interrupts import blocked_signals

_process.PRELOADED = _process.PRELOADED[:1]  # the others take seconds and change no signal
if __name__ == "__main__":
    with ProcessExecutor(None, 1):
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=blocked_signals, args=(theirs,))
        process.start()
        print(sorted(ours.recv()))
"""


@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="needs a fork server"
)
def test_processes_of_the_calling_program_find_nothing_blocked(tmp_path):
    """Although they are forked by the server of our workers, which blocks interrupts."""
    (tmp_path / "guest.py").write_text(GUEST)
    done = subprocess.run(
        [sys.executable, "guest.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_start_is_not_interrupted_through_another_thread():
    """The system gives a signal to any thread, and Python raises it in the main one."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    done = []

    def start():
        with shield_children_from_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            for number in range(100):  # the other thread needs a moment to get it
                time.sleep(1e-3)
                done.append(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        ended.set()
        thread.join()
    assert len(done) == 100
