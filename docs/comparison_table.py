"""A comparison as a table on a page."""

from IPython.display import Markdown


def show(found, estimators):
    """Relative to the first row: variance with its error bar, evaluations of f, and the product of the two."""
    first = found.rows[0]
    lines = [
        "| estimator | gradient of f | variance | evaluations of f | variance x evaluations |",
        "|---|---|---|---|---|",
    ]
    for row, estimator in zip(found.rows, estimators, strict=True):
        relative, error = row.variance / first.variance, row.standard_error / first.variance
        price = row.variance_times_evaluations / first.variance_times_evaluations
        asks = asked(estimator)
        lines.append(f"| `{row.name}` | {asks} | {relative:.3g} ± {error:.1g} | {row.evaluations} | {price:.3g} |")
    return Markdown("\n".join(lines))


def asked(estimator):
    """Where the estimator wants the gradient of f."""
    if estimator.needs_df:
        return "at the samples"
    if estimator.needs_mean:
        return "at the mean"
    return "at relaxed points" if estimator.relaxed_points else "no"
