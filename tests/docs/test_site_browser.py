"""The site in a browser: mathematics is drawn, search finds, a phone can read it, and nothing is asked of others."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from chromium import PROGRAM, chromium

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed: the site is not tested in it")

PHONE = 390


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser, address):
    """A page on a wide screen; whatever a test did, nothing may have been asked of others and nobody complained to."""
    browser.resize(1200)
    browser.requests.clear()
    browser.complaints.clear()
    yield browser
    assert [url for url in browser.requests if not url.startswith((f"{address}/", "data:"))] == []
    assert browser.complaints == []


def typeset(page):
    """Wait for the mathematics; how many formulas there are, how many are drawn, and how many are wrong."""
    page.evaluate("window.MathJax ? MathJax.startup.promise.then(() => true) : true")
    return page.evaluate("""[
        document.querySelectorAll('.math').length,
        [...document.querySelectorAll('.math mjx-container svg')].filter(
            (drawn) => drawn.getBoundingClientRect().width > 0).length,
        document.querySelectorAll('mjx-merror, [data-mjx-error]').length]""")


def cut_off(page):
    """What sticks out of the screen, and is not inside something that can be scrolled and stays within it."""
    script = """[...document.querySelectorAll('.content *:not(svg *)')].filter((element) => {
        const box = element.getBoundingClientRect();
        const sticksOut = (box) => box.left >= 0 && box.right > %d;
        if (box.width === 0 || !sticksOut(box)) return false;
        const scrolls = (node) => ['auto', 'scroll'].includes(getComputedStyle(node).overflowX);
        for (let node = element.parentElement; !node.matches('.content'); node = node.parentElement) {
            if (scrolls(node)) return sticksOut(node.getBoundingClientRect());
        }
        return true;
    }).map((element) => element.outerHTML.slice(0, 200))"""
    return page.evaluate(script % (PHONE + 1))


def all_pages(site):
    return sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts)


def test_every_page_renders_and_fits_a_phone(page, address, site):
    formulas = {}
    for name in all_pages(site):
        page.resize(1200)
        page.open(f"{address}/{name}")
        assert page.evaluate("document.querySelector('article').textContent.length") > 20, name
        there, drawn, wrong = typeset(page)
        assert drawn >= there, f"{name}: {drawn} of {there} formulas are drawn"
        assert wrong == 0, name
        formulas[name] = drawn
        pictures = page.evaluate("[...document.querySelectorAll('article img')].map((image) => image.naturalWidth)")
        assert all(width > 100 for width in pictures), name
        page.resize(PHONE)
        assert cut_off(page) == [], name
    assert formulas["mathematics.html"] > 50
    assert formulas["quadratic-double-cv.html"] > 30


def test_the_figures_are_there(page, address):
    for name in ("learn-alpha", "quadratic-double-cv"):
        page.open(f"{address}/{name}.html")
        assert page.evaluate("[...document.querySelectorAll('article img')].length") >= 1, name


def test_the_measured_table_has_a_row_for_each_estimator(page, address):
    page.open(f"{address}/which-estimator.html")
    rows = page.evaluate("""[...document.querySelectorAll('.cell_output table tbody tr')].map(
        (row) => [...row.cells].map((cell) => cell.textContent))""")
    variances = {row[0]: float(row[2].split("±")[0]) for row in rows}
    assert variances["rloo"] == 1
    assert variances["quadratic-double-cv"] < variances["double-cv"]


def test_search_finds(page, address):
    page.open(f"{address}/index.html")
    page.evaluate("document.querySelector('input[name=q]').focus()")
    page.call("Input.insertText", text="antithetic")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    page.load(lambda: page.call("Input.dispatchKeyEvent", type="keyDown", **enter))
    found = page.evaluate("""new Promise((done) => {
        const look = () => {
            const links = [...document.querySelectorAll('ul.search li a')].map((link) => link.getAttribute('href'));
            if (links.length > 2) done(links); else setTimeout(look, 50);
        };
        look();
    })""")
    assert any("mathematics.html" in link for link in found), found


def test_a_tab_shows_its_framework_and_keeps_it(page, address):
    page.open(f"{address}/get-started.html")
    shown = page.evaluate("""(() => {
        const labels = [...document.querySelectorAll('label.sd-tab-label')];
        labels.find((label) => label.textContent.trim() === 'PyTorch').click();
        return [...document.querySelectorAll('.sd-tab-content')].filter(
            (tab) => getComputedStyle(tab).display !== 'none').map((tab) => tab.textContent.includes('torch'));
    })()""")
    assert shown
    assert all(shown)
