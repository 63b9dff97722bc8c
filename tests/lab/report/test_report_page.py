"""The page in a browser: it renders, sorts, answers the pointer and the keys, fits a phone, and asks for nothing."""

import pytest

from browser import WIDE
from doublecv.lab.report import report

pytestmark = pytest.mark.browser

ELBO_TABLE = "table-k2-bernoulli-20-steps"


@pytest.fixture(scope="module")
def address(tiny_sweep):
    return report.write(tiny_sweep)[0].as_uri()


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
        "Runs that do not count",
        "Order of the estimators",
        "Training ELBO",
        "Variance and ELBO over the steps",
        "Training ELBO against time",
        "Test set, variance and alpha",
        "Toy problem",
        "Time per step",
        "Pictures",
        "Settings and versions",
    ]
    drawn = page.evaluate("""[...document.querySelectorAll('.chart')].map(
        (chart) => [...chart.querySelectorAll('.line')].filter((line) => line.getTotalLength() > 100).length)""")
    assert drawn == [3, 3, 3, 3, 3, 3, 2]
    assert page.evaluate("[...document.images].map((image) => image.naturalWidth)") == [70, 70, 70]


def test_a_table_sorts_by_number_with_the_empty_cells_last(page):
    assert click_heading(page, ELBO_TABLE, 5) == "descending"
    published = column(page, ELBO_TABLE, 5)
    assert numbers(published) == sorted(numbers(published), reverse=True)
    assert len(set(published)) == 8
    click_heading(page, ELBO_TABLE, 1)
    assert column(page, ELBO_TABLE, 3)[:4] == [""] * 4
    assert click_heading(page, ELBO_TABLE, 3) == "descending"
    measured = column(page, ELBO_TABLE, 3)
    assert measured[3:] == [""] * 5
    assert numbers(measured) == sorted(numbers(measured), reverse=True)
    assert click_heading(page, ELBO_TABLE, 3) == "ascending"
    turned = column(page, ELBO_TABLE, 3)
    assert turned[3:] == [""] * 5
    assert numbers(turned) == sorted(numbers(turned))
    sorts = page.evaluate(
        f"[...document.querySelectorAll('#{ELBO_TABLE} th')].map((th) => th.getAttribute('aria-sort'))"
    )
    assert sorts.count("ascending") == 1


def test_a_table_sorts_by_word_and_rows_stay_whole(page):
    before = {tuple(row) for row in zip(*(column(page, ELBO_TABLE, number) for number in range(8)), strict=True)}
    assert click_heading(page, ELBO_TABLE, 2) == "ascending"
    names = column(page, ELBO_TABLE, 2)
    assert names == sorted(names)
    assert {
        tuple(row) for row in zip(*(column(page, ELBO_TABLE, number) for number in range(8)), strict=True)
    } == before


def test_the_pointer_and_the_keys_show_values(page):
    chart = "document.querySelector('.chart')"
    x, y = page.evaluate(f"""(() => {{
        const svg = {chart}.querySelector(':scope > svg');
        svg.scrollIntoView({{block: 'center'}});
        const box = svg.getBoundingClientRect();
        return [box.right - 13, box.top + 50];
    }})()""")
    page.mouse.move(x, y)
    tip = f"{chart}.querySelector('.tip').innerText"
    shown = page.evaluate(tip)
    assert shown.startswith("step 20\n")
    assert [name for name in ("RLOO", "Double CV", "RELAX") if name in shown] == ["RLOO", "Double CV", "RELAX"]
    last = page.evaluate(f"JSON.parse({chart}.querySelector('script').textContent).lines[0].y.at(-1)")
    assert f"{last:.2e}".replace("e-0", "e-").replace("-", "\N{MINUS SIGN}") in shown
    page.evaluate(f"{chart}.querySelector(':scope > svg').focus()")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(tip).startswith("step 18\n")
    page.keyboard.press("Escape")
    assert page.evaluate(f"{chart}.querySelector('.tip').hidden")


def test_a_line_can_be_taken_away(page):
    lines = "document.querySelectorAll('.chart')[1].querySelectorAll('.line').length"
    button = "document.querySelectorAll('.chart')[1].querySelector('.legend button')"
    page.evaluate(f"{button}.click()")
    assert page.evaluate(lines) == 2
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.evaluate(f"{button}.click()")
    assert page.evaluate(lines) == 3


@pytest.mark.parametrize("width", [390, 320, 1200])
def test_nothing_is_wider_than_the_window(visit, width):
    page = visit(width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widest = page.evaluate("Math.max(...[...document.querySelectorAll('.chart > svg')].map((svg) => svg.clientWidth))")
    assert 200 < widest <= width


def test_it_is_accessible(page):
    assert page.evaluate("document.querySelectorAll('thead th:not([scope=col])').length") == 0
    assert page.evaluate("document.querySelectorAll('tbody th:not([scope=row])').length") == 0
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll tbody tr')].every((row) => row.cells[0].tagName === 'TH')"
    )
    assert page.evaluate("[...document.images].every((image) => image.alt.length > 20)")
    assert page.evaluate(
        "[...document.querySelectorAll('.chart > svg')].every((svg) => svg.getAttribute('aria-label').length > 20)"
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
    return {text: all('p, td, th, a, figcaption, caption, summary', 'color'), lines: all('.chart .line', 'stroke')};
})()"""
