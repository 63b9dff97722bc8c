"""The settings of one training run; the protocol's are the paper's. No JAX here: the command line's help reads this."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal

import tyro

from doublecv import estimators
from doublecv.distributions import Bernoulli, Categorical
from doublecv.estimators import RStar
from doublecv.lab.common.errors import InputError

LEARNING_RATES = {"bernoulli": 1e-3, "gaussian": 1e-4}
"""The paper's: 0.001 for binarised data, 0.0001 for continuous data."""


@dataclass(frozen=True)
class TrainSettings:
    """Train a variational autoencoder with discrete latents."""

    data: Literal["digits", "mnist", "fashion-mnist", "omniglot"] = "digits"
    """The images."""
    likelihood: Literal["bernoulli", "gaussian"] = "bernoulli"
    """Bernoulli on images binarised anew at every visit, or Gaussian on values in [-1, 1]."""
    model: Literal["nonlinear", "linear"] = "nonlinear"
    """Two hidden layers of 200 LeakyReLU on both sides, or one dense layer on each."""
    latent: Literal["bernoulli", "categorical"] = "bernoulli"
    """The family of the latent variables."""
    latents: int = 200
    """D, the number of latent variables."""
    categories: int = 10
    """The categories of each, for categorical latents."""
    kl: Literal["sampled", "analytic"] = "sampled"
    """log q inside f, as in the paper, or the Kullback-Leibler term in closed form, outside f."""
    estimator: str = "double-cv"
    """The name of a registered estimator; an unknown name gets the list of all."""
    samples: int = 2
    """K, the number of samples of one estimate."""
    steps: int = 10_000
    """Steps of the optimiser (the paper: 1,000,000)."""
    batch: int = 100
    """Images a step."""
    learning_rate: float | None = None
    """Adam's learning rate; without it 0.001 for Bernoulli and 0.0001 for Gaussian likelihoods."""
    coefficient_learning_rate: float = 1e-3
    """Adam's learning rate for the estimator's coefficients, such as alpha."""
    seed: int = 1
    """The seed, or the first of several."""
    record_every: int = 200
    """Steps that run as one compiled program; after each such chunk come metrics and the progress bar."""
    evaluate_every: int = 5000
    """Steps from one ELBO over the whole training and validation sets to the next."""
    checkpoint_every: int = 2000
    """Steps from one checkpoint to the next."""
    compare_variance: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """Estimators whose variances are measured at every evaluation, at the same parameters and on the same batch."""
    compare_draws: int = 200
    """Fresh estimates from which each of these variances is computed."""
    bound_samples: int = 100
    """Samples of the multi-sample bound on the test set at the end."""

    @property
    def rate(self) -> float:
        """The learning rate that holds."""
        return LEARNING_RATES[self.likelihood] if self.learning_rate is None else self.learning_rate

    def check(self) -> None:
        """Raise an `InputError` where a setting cannot work."""
        least = {"latents": 1, "categories": 2, "steps": 1, "batch": 1, "record_every": 1, "evaluate_every": 1}
        least |= {"checkpoint_every": 1, "compare_draws": 2, "bound_samples": 1, "seed": 0}
        for field, bound in least.items():
            if (value := getattr(self, field)) < bound:
                raise InputError(f"{_flag(field)} must be at least {bound}, got {value}")
        for field in ("rate", "coefficient_learning_rate"):
            if not 0 < (value := getattr(self, field)) < float("inf"):
                flag = "--learning-rate" if field == "rate" else _flag(field)
                raise InputError(f"{flag} must be a positive number, got {value}")
        self._check_estimator("--estimator", self.estimator)
        for name in self.compare_variance:
            self._check_estimator("--compare-variance", name)
            if self.compare_variance.count(name) > 1:
                raise InputError(f"--compare-variance must name each estimator once, got {name!r} more than once")

    def _check_estimator(self, flag: str, name: str) -> None:
        if name not in estimators.names():
            close = get_close_matches(name, estimators.names(), n=1)
            raise InputError(
                f"{flag} must be one of {', '.join(estimators.names())}; got {name!r}"
                + (f", did you mean {close[0]!r}?" if close else "")
            )
        try:
            estimator = estimators.make(name, samples=self.samples)
        except (ValueError, TypeError) as error:
            raise InputError(f"--samples {self.samples} does not fit {flag} {name}: {error}") from error
        if isinstance(estimator, RStar):
            raise InputError(f"{flag} r-star needs the exact mean of f, which is not known here; rloo estimates it")
        family = Categorical if self.latent == "categorical" else Bernoulli
        if family not in estimator.families:
            raise InputError(
                f"{flag} {name} is for binary latents alone; for --latent categorical take rloo or double-cv"
            )


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
