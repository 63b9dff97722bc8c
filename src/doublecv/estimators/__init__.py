"""The estimators, one file a family, and the registry that makes them by name."""

from functools import partial

from doublecv.estimators.arms import ARMS
from doublecv.estimators.base import Estimator
from doublecv.estimators.disarm import DisARM
from doublecv.estimators.double_cv import DoubleCV
from doublecv.estimators.evaluation import Evaluation
from doublecv.estimators.muprop import MuProp
from doublecv.estimators.rebar import Rebar
from doublecv.estimators.registry import make, names, register
from doublecv.estimators.reinforce import Reinforce
from doublecv.estimators.relax import Relax
from doublecv.estimators.rloo import RLOO
from doublecv.estimators.rstar import RStar

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

__all__ = [
    "ARMS",
    "RLOO",
    "DisARM",
    "DoubleCV",
    "Estimator",
    "Evaluation",
    "MuProp",
    "RStar",
    "Rebar",
    "Reinforce",
    "Relax",
    "make",
    "names",
    "register",
]
