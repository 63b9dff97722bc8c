"""The engine of a sweep: hand runs to workers, follow them, and stop them on request.

Workers are processes on this machine (`local`) or tasks of a Ray cluster (`ray`). Both implement `Workers`, so that
order, failures, interruption and the display are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from doublecv.lab.sweep.plan import SweepRun
from doublecv.lab.sweep.progress import SweepProgress

STOPPED = 130
"""The exit status of a run that was asked to stop, and did."""


class Ended(NamedTuple):
    """A run that is no longer running, its exit status, 0 for success, and the reason of a failure."""

    run: SweepRun
    status: int
    reason: str = ""


class Workers(Protocol):
    """Run the runs of one sweep."""

    def has_room(self, run: SweepRun) -> bool:
        """Return whether the run may be submitted now."""

    def submit(self, run: SweepRun) -> None:
        """Start the run, or queue it."""

    def wait(self, seconds: float) -> Sequence[Ended]:
        """Return the runs that have ended, after at most so many seconds."""

    def request_stop(self) -> None:
        """Ask all runs to save and stop; may be called repeatedly."""


def run(
    runs: Sequence[SweepRun], workers: Workers, progress: SweepProgress, stop: Callable[[], bool], pause: float = 0.2
) -> None:
    """Run all runs that are not done; when `stop` returns True, let those that are running save, and return.

    A run that fails does not keep the others from running.
    """
    waiting = [each for each in runs if not each.is_done()]
    submitted: dict[str, SweepRun] = {}
    while submitted or (waiting and not stop()):
        while waiting and not stop() and workers.has_room(waiting[0]):
            each = waiting.pop(0)
            submitted[each.name] = each
            workers.submit(each)
        for ended in workers.wait(pause):
            del submitted[ended.run.name]
            stopped = stop() and (ended.status == STOPPED or ended.status < 0)
            how = "done" if ended.status == 0 else "stopped" if stopped else "failed"
            progress.end(ended.run, how, ended.reason if how == "failed" else "")
        progress.show(submitted.values())
        if stop():
            progress.stopping()
            workers.request_stop()
