"""The page in a browser: it renders, sorts, fits a phone, requests nothing, and runs no foreign code."""

import pytest
from test_damage import hostile

from browser import WIDE
from doublecv.lab.report import render

pytestmark = pytest.mark.browser

ELBO_TABLE = "table-k2-bernoulli"

__all__ = ["hostile"]


@pytest.fixture(scope="module")
def address(tiny_sweep):
    return render.write(tiny_sweep)[0].as_uri()


@pytest.fixture
def visit(pages, address):
    """Open the report; it may request nothing but itself and its own pictures, and may not complain."""
    yield lambda width=WIDE: pages.open(address, width)
    assert [url for url in pages.requests if not url.startswith("data:image/png;base64,")] == [address]
    assert pages.complaints == []


@pytest.fixture
def page(visit):
    return visit()


def column(page, table, number):
    return page.evaluate(
        f"[...document.getElementById('{table}').tBodies[0].rows].map((row) => row.cells[{number}].textContent)"
    )


def click_heading(page, table, number):
    return page.evaluate(f"""(() => {{
        const header = document.querySelectorAll('#{table} thead th')[{number}];
        header.querySelector('button').click();
        return header.getAttribute('aria-sort');
    }})()""")


def numbers(texts):
    return [float(text.split()[0].replace("\N{MINUS SIGN}", "-")) for text in texts if text]


def test_it_renders(page):
    headings = page.evaluate("[...document.querySelectorAll('h2')].map((heading) => heading.textContent)")
    assert headings == [
        "Which of the paper's cells are reproduced",
        "Runs that are not complete",
        "Training ELBO",
        "Variance and ELBO over the steps",
        "Training ELBO against time",
        "Test set, variance, alpha",
        "Toy problem",
        "Time per step",
        "Versions",
    ]
    drawn = page.evaluate("""[...document.querySelectorAll('.chart svg')].map(
        (svg) => [...svg.querySelectorAll('[id*=line2d] path')].filter((one) => one.getTotalLength() > 100).length)""")
    assert len(drawn) == 2 + 1 + 4
    assert min(drawn) >= 2


def test_a_table_sorts_by_number_with_the_empty_cells_last(page):
    assert click_heading(page, ELBO_TABLE, 4) == "descending"
    measured = column(page, ELBO_TABLE, 4)
    assert len(numbers(measured)) == 3
    assert measured[3:] == [""] * (len(measured) - 3)
    assert numbers(measured) == sorted(numbers(measured), reverse=True)
    assert click_heading(page, ELBO_TABLE, 4) == "ascending"
    reversed_order = column(page, ELBO_TABLE, 4)
    assert reversed_order[3:] == [""] * (len(measured) - 3)
    assert numbers(reversed_order) == sorted(numbers(reversed_order))
    sorts = page.evaluate(
        f"[...document.querySelectorAll('#{ELBO_TABLE} th')].map((th) => th.getAttribute('aria-sort'))"
    )
    assert sorts.count("ascending") == 1


def test_a_table_sorts_by_word_and_rows_stay_complete(page):
    before = {tuple(row) for row in zip(*(column(page, ELBO_TABLE, number) for number in range(8)), strict=True)}
    assert click_heading(page, ELBO_TABLE, 1) == "ascending"
    names = column(page, ELBO_TABLE, 1)
    assert names == sorted(names)
    after = {tuple(row) for row in zip(*(column(page, ELBO_TABLE, number) for number in range(8)), strict=True)}
    assert after == before


@pytest.mark.parametrize("width", [390, 320, 1200])
def test_nothing_is_wider_than_the_window(visit, width):
    page = visit(width)
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widest = page.evaluate("Math.max(...[...document.querySelectorAll('.chart svg')].map((svg) => svg.clientWidth))")
    assert 200 < widest <= width


def test_it_is_accessible(page):
    assert page.evaluate("document.querySelectorAll('thead th:not([scope=col])').length") == 0
    assert page.evaluate("document.querySelectorAll('tbody th:not([scope=row])').length") == 0
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll tbody tr')].every((row) => row.cells[0].tagName === 'TH')"
    )
    assert page.evaluate(
        "[...document.querySelectorAll('.chart')].every((chart) => chart.getAttribute('aria-label').length > 20)"
    )
    assert page.evaluate("document.documentElement.lang") == "en"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    links = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((one) => one.hash.slice(1))")
    assert set(links) <= set(ids)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(page, scheme):
    """WCAG's contrast: 4.5 for text and 3 for the lines of the charts, in both schemes."""
    page.emulate_media(color_scheme=scheme)
    contrasts = page.evaluate(CONTRASTS)
    assert min(contrasts["text"]) >= 4.5
    assert min(contrasts["lines"]) >= 3
    assert len(contrasts["lines"]) > 15


def test_a_hostile_sweep_runs_nothing(hostile, pages):
    """No script, no event handler, no request, and the foreign text is there to read."""
    address = render.write(hostile)[0].as_uri()
    dialogs = []
    page = pages.open(address)
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.reload()
    assert dialogs == []
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("[...document.querySelectorAll('*')].filter((one) => one.getAttributeNames().some("
                         "(name) => name.startsWith('on'))).length") == 0  # fmt: skip
    assert all(url.startswith("data:image/png") for url in pages.requests if url != address)
    assert pages.complaints == []
    assert "<script>alert(1)</script>" in page.evaluate("document.body.innerText")
    assert click_heading(page, ELBO_TABLE, 4) == "descending"


def test_the_policy_stops_a_script_that_was_smuggled_in(address, pages, tiny_sweep):
    path = tiny_sweep / "report" / "report.html"
    changed = path.with_name("changed.html")
    changed.write_text(path.read_text().replace("</main>", "<script>document.title = 'foreign'</script></main>"))
    page = pages.open(changed.as_uri())
    assert page.title() != "foreign"
    assert any("Content Security Policy" in complaint for complaint in pages.complaints)


CONTRASTS = """(() => {
    const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const luminance = (colour) => {
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        const [red, green, blue] = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((byte) => {
            const part = byte / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const ground = luminance(getComputedStyle(document.body).backgroundColor);
    const contrast = (colour) => {
        const two = [luminance(colour), ground].sort((one, other) => other - one);
        return (two[0] + 0.05) / (two[1] + 0.05);
    };
    const all = (choice, property) =>
        [...document.querySelectorAll(choice)].map((one) => contrast(getComputedStyle(one)[property]));
    const lines = '.chart svg [id*=legend] [id*=line2d] path';
    return {text: all('p, td, th, a, figcaption, caption', 'color').concat(all('.chart svg text', 'fill')),
            lines: all(lines, 'stroke')};
})()"""
