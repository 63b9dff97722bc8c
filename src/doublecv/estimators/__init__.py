"""The estimators, one file per family, and the registry that makes them by name."""

from functools import partial

from doublecv.estimators.antithetic import ARMS, DisARM
from doublecv.estimators.base import (
    Applied,
    DescendingEstimator,
    Estimator,
    FixedEstimator,
    Learned,
    Needs,
    RelaxedEstimator,
)
from doublecv.estimators.bound import MultiSampleBound
from doublecv.estimators.categorical import CARMS, AntitheticTree, DisARMTree, StickBreakingCopula
from doublecv.estimators.couplings import Antithetic, Coupling, DirichletCopula, Independent
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import LinearEstimator, fixed_coefficients
from doublecv.estimators.parts import Parts, TabledScores, Vectors, WeightedScores
from doublecv.estimators.quadratic import QuadraticDoubleCV
from doublecv.estimators.registry import label, make, names, register
from doublecv.estimators.relaxed import ConcreteDoubleCV, Rebar, Relax
from doublecv.estimators.score_function import RLOO, Reinforce, RStar
from doublecv.estimators.stein import Rodeo
from doublecv.estimators.surrogate import LearnedSurrogate
from doublecv.estimators.taylor import DoubleCV, HalfDoubleCV, MuProp


def _surrogate_quadratic(samples: int, directions: int | None = None) -> LearnedSurrogate:
    return LearnedSurrogate(QuadraticDoubleCV(samples), directions)


register("reinforce", Reinforce)
register("r-star", RStar)
register("rloo", RLOO)
# The paper descends alpha; the names of its estimators, and of those made in the same way, do as well.
register("double-cv", partial(DoubleCV, learning="gradient"))
register("double-cv-mean", partial(DoubleCV, control="mean", learning="gradient"))
register("double-cv-current", partial(HalfDoubleCV, keep="current"))
register("double-cv-others", partial(HalfDoubleCV, keep="others"))
register("muprop", MuProp)
register("disarm", DisARM)
register("arms", ARMS)
register("carms", CARMS)
register("disarm-tree", DisARMTree)
register("rebar", Rebar)
register("relax", Relax)
register("rodeo", Rodeo)
register("double-cv-moments", DoubleCV)
register("double-cv-antithetic", partial(DoubleCV, coupling=Antithetic(), learning="gradient"))
register("double-cv-mean-antithetic", partial(DoubleCV, control="mean", coupling=Antithetic(), learning="gradient"))
register("double-cv-mean-dirichlet", partial(DoubleCV, control="mean", coupling=DirichletCopula(), learning="gradient"))
register("double-cv-concrete", ConcreteDoubleCV)
register("quadratic-double-cv", QuadraticDoubleCV)
register("quadratic-double-cv-gradient", partial(QuadraticDoubleCV, learning="gradient"))
register("surrogate-quadratic-double-cv", _surrogate_quadratic)

__all__ = [
    "ARMS",
    "CARMS",
    "RLOO",
    "Antithetic",
    "AntitheticTree",
    "Applied",
    "ConcreteDoubleCV",
    "Coupling",
    "DescendingEstimator",
    "DirichletCopula",
    "DisARM",
    "DisARMTree",
    "DoubleCV",
    "Estimator",
    "Evaluation",
    "FixedEstimator",
    "HalfDoubleCV",
    "Independent",
    "Learned",
    "LearnedSurrogate",
    "LinearEstimator",
    "MuProp",
    "MultiSampleBound",
    "Needs",
    "Parts",
    "QuadraticDoubleCV",
    "RStar",
    "Rebar",
    "Reinforce",
    "Relax",
    "RelaxedEstimator",
    "Rodeo",
    "StickBreakingCopula",
    "TabledScores",
    "Vectors",
    "WeightedScores",
    "fixed_coefficients",
    "label",
    "make",
    "names",
    "register",
]
