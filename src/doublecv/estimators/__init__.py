"""The estimators, one file a family, and the registry that makes them by name."""

from functools import partial

from doublecv.estimators.arms import ARMS
from doublecv.estimators.base import Estimator
from doublecv.estimators.disarm import DisARM
from doublecv.estimators.double_cv import DoubleCV
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.linear import LinearEstimator
from doublecv.estimators.muprop import MuProp
from doublecv.estimators.parts import Parts, Vectors, WeightedScores
from doublecv.estimators.quadratic_double_cv import QuadraticDoubleCV
from doublecv.estimators.rebar import Rebar
from doublecv.estimators.registry import make, names, register
from doublecv.estimators.reinforce import Reinforce
from doublecv.estimators.relax import Relax
from doublecv.estimators.rloo import RLOO
from doublecv.estimators.rodeo import Rodeo
from doublecv.estimators.rstar import RStar
from doublecv.estimators.surrogate import Surrogate

register("reinforce", Reinforce)
register("r-star", RStar)
register("rloo", RLOO)
register("double-cv", DoubleCV)
register("double-cv-mean", partial(DoubleCV, surrogate="mean"))
register("double-cv-current", partial(DoubleCV, keep="current"))
register("double-cv-others", partial(DoubleCV, keep="others"))
register("muprop", MuProp)
register("disarm", DisARM)
register("arms", ARMS)
register("rebar", Rebar)
register("relax", Relax)
register("rodeo", Rodeo)
register("double-cv-moments", partial(DoubleCV, learning="moments"))
register("double-cv-antithetic", partial(DoubleCV, coupling="antithetic"))
register("double-cv-mean-antithetic", partial(DoubleCV, surrogate="mean", coupling="antithetic"))
register("double-cv-mean-dirichlet", partial(DoubleCV, surrogate="mean", coupling="dirichlet"))
register("double-cv-concrete", partial(DoubleCV, surrogate="concrete"))
register("quadratic-double-cv", QuadraticDoubleCV)
register("quadratic-double-cv-gradient", partial(QuadraticDoubleCV, learning="gradient"))
register("surrogate-quadratic-double-cv", lambda samples: Surrogate(QuadraticDoubleCV(samples)))

__all__ = [
    "ARMS",
    "RLOO",
    "DisARM",
    "DoubleCV",
    "Estimator",
    "Evaluation",
    "LinearEstimator",
    "MuProp",
    "Parts",
    "QuadraticDoubleCV",
    "RStar",
    "Rebar",
    "Reinforce",
    "Relax",
    "Rodeo",
    "Surrogate",
    "Vectors",
    "WeightedScores",
    "make",
    "names",
    "register",
]
