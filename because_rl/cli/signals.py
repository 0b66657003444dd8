"""Ctrl-C and SIGTERM: one line on stderr, exit code 130 or 143, and no process left behind.

Both arrive as a KeyboardInterrupt, so that every `finally` runs. Python can raise it only between two of its own
instructions, and a compiled program may run for minutes: where the process has not ended after `GRACE` seconds, a
thread ends it. Nothing is lost by that, since files are written in one step, and worker processes end with this one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

GRACE = 3.0
announced = threading.Event()
"""Set once the line about the interrupt has been printed."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived."""


def interrupt_of(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that an error is, or that was passing when it was raised: closing a half-written archive raises
    its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def exit_code(interrupt: KeyboardInterrupt) -> int:
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def signals_handled(name: str) -> Iterator[None]:
    """Handle the signals while the context lasts, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    announced.clear()
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    before = signal.signal(signal.SIGTERM, _terminate)
    wakeup = signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    threading.Thread(target=_end_after_grace, args=(name, receiving), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        os.close(sending)  # the thread reads to the end, and ends


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def _end_after_grace(name: str, receiving: int) -> None:
    """In a thread: the system writes the number of each signal into the pipe, whatever the main thread does."""
    while number := os.read(receiving, 1):
        if number[0] in (signal.SIGINT, signal.SIGTERM):
            time.sleep(GRACE)
            if not _closed(receiving):
                if not announced.is_set():
                    print(f"{name}: interrupted.", file=sys.stderr, flush=True)
                os._exit(128 + number[0])
            break
    os.close(receiving)


def _closed(receiving: int) -> bool:
    """Whether the other end of the pipe has been closed: the context is over."""
    os.set_blocking(receiving, False)
    try:
        while data := os.read(receiving, 64):
            del data
        return True
    except BlockingIOError:
        return False
    finally:
        os.set_blocking(receiving, True)
