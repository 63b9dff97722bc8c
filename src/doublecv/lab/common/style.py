"""Labels, colours and line styles of the estimators, the same in all tables and figures."""

from __future__ import annotations

from typing import NamedTuple

from doublecv import estimators


class Appearance(NamedTuple):
    """The label, colour and line style of an estimator."""

    label: str
    colour: str
    line: str = "solid"


_KNOWN = {
    "rloo": Appearance("RLOO", "#0072b2"),
    "double-cv": Appearance("Double CV", "#d55e00"),
    "disarm": Appearance("DisARM", "#009e73", "dashed"),
    "r-star": Appearance("R*", "#222222"),
    "reinforce": Appearance("REINFORCE", "#8c8c8c"),
    "muprop": Appearance("MuProp", "#cc79a7", "dashed"),
    "double-cv-current": Appearance("Double CV, b(x_k) only", "#e69f00"),
    "double-cv-others": Appearance("Double CV, b(x_j) only", "#56b4e9"),
    "double-cv-mean": Appearance("Double CV, mean field", "#8c2d04"),
    "double-cv-antithetic": Appearance("Double CV, antithetic pairs", "#fd8d3c", "dashed"),
    "double-cv-mean-antithetic": Appearance("Double CV, mean field, antithetic pairs", "#6b4c3b", "dashed"),
    "double-cv-mean-dirichlet": Appearance("Double CV, mean field, Dirichlet copula", "#b15928", "dotted"),
    "double-cv-concrete": Appearance("Double CV, concrete", "#d6604d"),
    "arms": Appearance("ARMS", "#117733", "dotted"),
    "carms": Appearance("CARMS", "#4b7f52", "dotted"),
    "disarm-tree": Appearance("DisARM-Tree", "#1b6e6e", "dashed"),
    "rebar": Appearance("REBAR", "#882255"),
    "relax": Appearance("RELAX", "#332288"),
    "rodeo": Appearance("RODEO", "#999933", "dashed"),
    "double-cv-moments": Appearance("Double CV, moments", "#f0a070", "dotted"),
    "quadratic-double-cv": Appearance("Quadratic double CV", "#aa4499"),
    "quadratic-double-cv-gradient": Appearance("Quadratic double CV, descent", "#c994c7", "dotted"),
    "surrogate-quadratic-double-cv": Appearance("Surrogate + quadratic", "#44aa99"),
}

_SPARE_COLOURS = ("#ddcc77", "#661100", "#6699cc")


def appearance(name: str) -> Appearance:
    """Return the appearance of an estimator; one that is not known here gets its name and a spare colour."""
    if name in _KNOWN:
        return _KNOWN[name]
    others = [other for other in estimators.names() if other not in _KNOWN]
    index = others.index(name) if name in others else 0
    return Appearance(name, _SPARE_COLOURS[index % len(_SPARE_COLOURS)])
