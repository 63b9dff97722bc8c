"""The site in a browser: mathematics is drawn, search finds, a phone can read it, and nothing is asked of others."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from browser import PHONE, WIDE

pytestmark = [pytest.mark.browser, pytest.mark.site]


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


@pytest.fixture
def visit(pages, address):
    """Open a page of the site by name; nothing may be requested from another host, and no page may complain."""
    yield lambda name, width=WIDE: pages.open(f"{address}/{name}.html", width)
    assert [url for url in pages.requests if not url.startswith((f"{address}/", "data:"))] == []
    # Sphinx's search takes the dots of a module's anchor for classes; it then shows the beginning of the page.
    assert [text for text in pages.complaints if not text.startswith("Anchored content block not found")] == []


def typeset(page):
    """Wait for the mathematics; return how many formulas there are, how many are drawn, and how many are wrong."""
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
            if (scrolls(node) && !sticksOut(node.getBoundingClientRect())) return false;
        }
        return true;
    }).map((element) => element.outerHTML.slice(0, 200))"""
    return page.evaluate(script % (PHONE + 1))


def all_pages(site):
    return sorted(
        str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html") if "_static" not in path.parts
    )


def test_every_page_renders_and_fits_a_phone(visit, site):
    formulas = {}
    for name in all_pages(site):
        page = visit(name, width=PHONE)
        assert page.evaluate("document.querySelector('article').textContent.length") > 20, name
        there, drawn, wrong = typeset(page)
        assert drawn >= there, f"{name}: {drawn} of {there} formulas are drawn"
        assert wrong == 0, name
        formulas[name] = drawn
        assert cut_off(page) == [], name
        page.set_viewport_size({"width": WIDE, "height": 800})
        pictures = page.evaluate("[...document.querySelectorAll('article img')].map((image) => image.naturalWidth)")
        assert all(width > 100 for width in pictures), name
        page.close()
    assert formulas["mathematics"] > 50
    assert formulas["quadratic-double-cv"] > 30


@pytest.mark.parametrize("name", ["learn-alpha", "quadratic-double-cv"])
def test_the_figures_are_there(visit, name):
    assert visit(name).locator("article img").count() >= 1


def test_the_measured_table_has_a_row_for_each_estimator(visit):
    table = visit("which-estimator").locator(".cell_output pre").first.text_content()
    header, *rows = (line.split() for line in table.splitlines() if line and not line.startswith("state "))
    relative = {row[0]: float(row[header.index("relative")]) for row in rows}
    assert relative["rloo"] == 1
    assert relative["quadratic-double-cv"] < relative["double-cv"] < 1


def test_search_finds(visit):
    page = visit("index")
    page.locator("input[name=q]").first.fill("antithetic")
    page.locator("input[name=q]").first.press("Enter")
    links = page.locator("ul.search li a")
    links.nth(2).wait_for()
    found = [link.get_attribute("href") for link in links.all()]
    assert any("mathematics.html" in link for link in found), found


def test_a_tab_shows_its_framework_and_keeps_it(visit):
    page = visit("get-started")
    page.locator("label.sd-tab-label", has_text="PyTorch").first.click()
    tabs = page.locator(".sd-tab-content").all()
    shown = [tab.text_content() for tab in tabs if tab.is_visible()]
    assert len(shown) == len(tabs) / 2
    assert "import torch" in shown[0]
    assert not any("jax" in text for text in shown)


def test_a_request_to_another_host_and_a_complaint_are_recorded(pages, tmp_path):
    """Show that the assertions after each test can fail."""
    path = tmp_path / "page.html"
    path.write_text("<img src='http://localhost:9/picture.png'><script>console.error('bad'); undefined.x</script>")
    pages.open(path.as_uri())
    assert "http://localhost:9/picture.png" in pages.requests
    assert any("bad" in complaint for complaint in pages.complaints)
    assert any("undefined" in complaint for complaint in pages.complaints)
