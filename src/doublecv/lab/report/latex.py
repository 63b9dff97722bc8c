"""The tables as LaTeX, in the layout of the paper's: a column an estimator, a row a network, the paper's below."""

from __future__ import annotations

from collections.abc import Iterable

from doublecv.lab.common.style import appearance
from doublecv.lab.report.cells import Cell, CellColumn, CellTable
from doublecv.lab.report.content import DATASET_NAMES, Content
from doublecv.lab.report.statistics import Estimate
from doublecv.lab.report.timing import TimeTable

RELAXED = ("rebar", "relax")
"""They stand right of a rule, since they evaluate f three times whatever K is."""

SPECIAL = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}


def document(content: Content) -> str:
    """All tables, to be read by a document that uses the package booktabs."""
    head = ["% Tables for \\input; they need \\usepackage{booktabs}.", *(f"% {line}" for line in _command(content))]
    tables = [_elbo_table(content, table) for table in content.tables] + [_time_table(table) for table in content.times]
    return "\n".join(head) + "\n\n" + "\n".join(tables)


def _command(content: Content) -> list[str]:
    return content.sweep.command.splitlines()


def _elbo_table(content: Content, table: CellTable) -> str:
    names = [name for name in table.estimators if name not in RELAXED]
    relaxed = [name for name in table.estimators if name in RELAXED]
    layout = "l" + "r" * len(names) + ("|" + "r" * len(relaxed) if relaxed else "")
    lines = [
        r"\begin{table*}[t]",
        r"\footnotesize",
        r"\centering",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        _row("", [rf"\multicolumn{{1}}{{c}}{{{_heading(name)}}}" for name in (*names, *relaxed)]),
    ]
    for dataset in dict.fromkeys(column.dataset for column in table.columns):
        width = 1 + len(names) + len(relaxed)
        lines += [
            r"\midrule",
            rf"\multicolumn{{{width}}}{{l}}{{\emph{{{escape(DATASET_NAMES.get(dataset, dataset))}}}:}} \\",
        ]
        for column in (column for column in table.columns if column.dataset == dataset):
            lines += _column(column, names, relaxed)
    data = "dynamically binarized" if table.likelihood == "bernoulli" else "non-binarized"
    caption = (
        f"Training binary latent VAEs with {table.likelihood.capitalize()} likelihoods using $K={table.samples}$"
        f"{' (except RELAX which needs 3 evaluations of $f$)' if relaxed else ''} on {data} data: "
        f"{escape(content.scale_of(*table.planned_columns))}. We report the average ELBO on the training set with its "
        "standard error over the seeds; below it the paper's. What was not run is empty."
    )
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:measured-k{table.samples}-{table.likelihood}}}",
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _column(column: CellColumn, names: list[str], relaxed: list[str]) -> list[str]:
    """A row of measured numbers and one of the paper's; the best are bold as in the paper."""
    cells = {cell.estimator: cell for cell in column.cells}
    best = _best(cells[name] for name in names if name in cells)
    measured, published = [], []
    for name in (*names, *relaxed):
        cell = cells.get(name)
        found = cell.measured() if cell is not None else None
        bold = found is not None and best is not None and found.mean >= best
        measured.append(_number(found, bold))
        published.append(_number(cell.paper if cell is not None else None))
    return [_row(column.network.capitalize(), measured), _row(r"\quad paper", published)]


def _best(cells: Iterable[Cell]) -> float | None:
    """The best of the estimators with K samples, which a relaxed one must beat to be bold as well."""
    return max((found.mean for cell in cells if (found := cell.measured()) is not None), default=None)


def _time_table(table: TimeTable) -> str:
    cells = [cell for cell in table.cells if cell.workload == "step"]
    steps = {samples: [cell for cell in cells if cell.baseline_samples == samples] for samples in _samples(table)}
    lines = []
    for samples, of_samples in steps.items():
        lines += [
            r"\begin{table}[ht]",
            r"\centering",
            rf"\begin{{tabular}}{{l{'r' * len(of_samples)}}}",
            r"\toprule",
            _row("", [rf"\multicolumn{{1}}{{c}}{{{escape(appearance(cell.estimator).label)}}}" for cell in of_samples]),
            r"\midrule",
            _row("Time (sec/step)", [f"{cell.milliseconds / 1000:.4f}" for cell in of_samples]),
            _row("Relative to RLOO", [f"{cell.ratio:.2f}" for cell in of_samples]),
            _row(
                r"\quad paper",
                ["" if cell.paper_ratio is None else f"{cell.paper_ratio:.2f}" for cell in of_samples],
            ),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{Time per step when training a Bernoulli VAE with $K={samples}$ (except RELAX which needs 3 "
            rf"evaluations of $f$): {escape(table.library)}, medians over {table.rounds} rounds. The paper's are "
            "from a P100 GPU.}",
            rf"\label{{tab:measured-time-k{samples}}}",
            r"\end{table}",
            "",
        ]
    return "\n".join(lines)


def _samples(table: TimeTable) -> list[int]:
    return sorted({cell.baseline_samples for cell in table.cells if cell.workload == "step"})


def _heading(name: str) -> str:
    return escape(appearance(name).label) + (" (3 evals)" if name in RELAXED else "")


def _number(estimate: Estimate | None, bold: bool = False) -> str:
    if estimate is None:
        return ""
    error = "" if estimate.standard_error is None else rf"\pm{estimate.standard_error:.2f}"
    face = r"\bf " if bold else ""
    return f"${face}{estimate.mean:.2f}{error}$"


def _row(heading: str, entries: Iterable[str]) -> str:
    return " & ".join([heading, *entries]) + r" \\"


def escape(text: str) -> str:
    """Plain text for LaTeX."""
    return "".join(SPECIAL.get(character, character) for character in text)
