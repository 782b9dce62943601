"""What a forked process must not do with the objects that it inherits.

A forked process, such as one of a DataLoader, is a copy of this one without its threads. The
destructors of torchft's objects and of gloo's groups wait for threads, and there without end.
"""

from __future__ import annotations

import gc
import os
import threading


class Inherited:
    """Keeps the garbage collector from whatever exists when this process forks.

    It is off during a fork, since hooks of others run in the child before this one, and allocate.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forks = 0  # that are under way, in several threads
        self._was_enabled = False

    def before(self) -> None:
        """Turn the collector off."""
        with self._lock:
            if not self._forks:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._forks += 1

    def in_parent(self) -> None:
        """Turn the collector on again, if it was, after the last fork under way."""
        with self._lock:
            self._forks -= 1
            if not self._forks and self._was_enabled:
                gc.enable()

    def in_child(self) -> None:
        """Set all objects aside for good; then collect what this process makes."""
        self._lock, self._forks = threading.Lock(), 0  # another thread may have held the lock
        gc.freeze()
        if self._was_enabled:
            gc.enable()

    def register(self) -> None:
        """Call the methods at every fork from now on."""
        os.register_at_fork(
            before=self.before, after_in_parent=self.in_parent, after_in_child=self.in_child
        )
