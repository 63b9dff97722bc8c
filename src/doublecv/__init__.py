"""Low-variance, unbiased gradients of expectations under discrete distributions, for JAX and PyTorch.

>>> import doublecv as dcv
>>> dcv.QuadraticDoubleCV(samples=4).evaluations
4
"""

from importlib import import_module
from types import ModuleType

from doublecv import biased, diagnostics, estimators
from doublecv.distributions import Bernoulli, Categorical
from doublecv.estimators import (
    ARMS,
    CARMS,
    RLOO,
    Antithetic,
    ConcreteDoubleCV,
    DirichletCopula,
    DisARM,
    DisARMTree,
    DoubleCV,
    Estimator,
    HalfDoubleCV,
    Learned,
    LearnedSurrogate,
    MultiSampleBound,
    MuProp,
    QuadraticDoubleCV,
    Rebar,
    Reinforce,
    Relax,
    Rodeo,
    RStar,
    label,
    make,
    names,
)
from doublecv.exact import exact_gradient, exact_mean, exact_moments
from doublecv.policy_gradient import advantages, pass_at_k, score_function_loss
from doublecv.sequential import Autoregressive, Layers, Product

__version__ = "0.2.0"

__all__ = [
    "ARMS",
    "CARMS",
    "RLOO",
    "Antithetic",
    "Autoregressive",
    "Bernoulli",
    "Categorical",
    "ConcreteDoubleCV",
    "DirichletCopula",
    "DisARM",
    "DisARMTree",
    "DoubleCV",
    "Estimator",
    "HalfDoubleCV",
    "Layers",
    "Learned",
    "LearnedSurrogate",
    "MuProp",
    "MultiSampleBound",
    "Product",
    "QuadraticDoubleCV",
    "RStar",
    "Rebar",
    "Reinforce",
    "Relax",
    "Rodeo",
    "advantages",
    "biased",
    "diagnostics",
    "estimators",
    "exact_gradient",
    "exact_mean",
    "exact_moments",
    "label",
    "make",
    "names",
    "pass_at_k",
    "score_function_loss",
]


def __getattr__(name: str) -> ModuleType:
    """Import the front-end `doublecv.jax` or `doublecv.torch` when it is first used."""
    if name in ("jax", "torch"):
        return import_module(f"doublecv.{name}")
    raise AttributeError(f"module 'doublecv' has no attribute {name!r}")
