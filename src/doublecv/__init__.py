"""Low-variance, unbiased gradients of expectations under discrete distributions, for JAX and PyTorch.

>>> import doublecv as dcv
>>> dcv.DoubleCV(samples=4).coefficients()
{'alpha': 0.0}
"""

from doublecv import diagnostics, estimators
from doublecv.distributions import Bernoulli, Categorical
from doublecv.estimators import (
    ARMS,
    RLOO,
    DisARM,
    DoubleCV,
    Estimator,
    Evaluation,
    MuProp,
    QuadraticDoubleCV,
    Rebar,
    Reinforce,
    Relax,
    Rodeo,
    RStar,
    Surrogate,
)
from doublecv.policy_gradient import advantages, pass_at_k, score_function_loss

__version__ = "0.1.0"

__all__ = [
    "ARMS",
    "RLOO",
    "Bernoulli",
    "Categorical",
    "DisARM",
    "DoubleCV",
    "Estimator",
    "Evaluation",
    "MuProp",
    "QuadraticDoubleCV",
    "RStar",
    "Rebar",
    "Reinforce",
    "Relax",
    "Rodeo",
    "Surrogate",
    "advantages",
    "diagnostics",
    "estimators",
    "pass_at_k",
    "score_function_loss",
]
