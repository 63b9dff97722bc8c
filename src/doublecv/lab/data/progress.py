"""The progress of downloads on standard error."""

from __future__ import annotations

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class DownloadBar:
    """One line of rich's progress, with the methods that pooch calls."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=None)
        self._total = 0

    @property
    def total(self) -> int:
        """The bytes that the server promised, 0 if it did not say."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        self._progress.update(self._task, total=total or None)

    def update(self, amount: int) -> None:
        """So many bytes more."""
        self._progress.update(self._task, advance=amount)

    def reset(self) -> None:
        """From the start again."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing more will come."""
        self._progress.stop_task(self._task)


def download_progress() -> Progress:
    """A display that goes away when the downloads are done."""
    from rich.console import Console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
