"""The bar shows what came of what was promised."""

from rich.progress import Progress

from doublecv.lab.data.fetch import DownloadBar


def test_bar_follows_the_download():
    with Progress() as progress:
        bar = DownloadBar(progress, "numbers from home")
        task = progress.tasks[0]
        assert (task.description, task.total, bar.total) == ("numbers from home", None, 0)
        bar.total = 1000
        bar.update(300)
        bar.update(400)
        assert (task.total, task.completed, bar.total) == (1000, 700, 1000)
        bar.reset()
        assert task.completed == 0
        bar.update(1000)
        assert task.finished
        bar.close()


def test_unknown_length_is_not_zero():
    with Progress() as progress:
        bar = DownloadBar(progress, "numbers from home")
        bar.total = 0
        bar.update(300)
        assert progress.tasks[0].total is None
        assert not progress.tasks[0].finished
