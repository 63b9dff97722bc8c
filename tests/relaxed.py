"""REBAR and RELAX set up for the tests, and the ways in which the two are known to go wrong."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import doublecv as dcv
from doublecv.arrays import detach
from doublecv.estimators.concrete import relax, relaxed_points
from noise_quadrature import value_at

KINDS = ("rebar", "relax")


def make_relaxed(kind, q, samples=1, cls=None, context=None, **values):
    """Return the estimator and its learned state, away from the start where `values` say so."""
    estimator = (cls or dcv.Rebar)(samples) if kind == "rebar" else (cls or dcv.Relax)(samples, units=4)
    learned = estimator.init(q, context)
    assert values.keys() <= learned.numbers.keys()
    changed = learned.numbers | {name: np.asarray(value, dtype=float) for name, value in values.items()}
    return estimator, learned._replace(numbers=changed)


@dataclass(frozen=True)
class SmoothRelax(dcv.Relax):
    """RELAX with tanh units, so that the trapezoidal rule converges to nearly all digits."""

    def _network(self, q, z, numbers, context):
        xp = q.xp
        flat = xp.reshape(z, (*q.batch_shape, -1))
        return xp.tanh(flat @ numbers["from_point"] + numbers["hidden_bias"]) @ numbers["to_output"]


@dataclass(frozen=True)
class ConditionalHeld(dcv.Rebar):
    """REBAR without the derivative of the conditional sample in the logits."""

    def control(self, f, q, noise, x, numbers, context):
        logits = q.xp.concat([q.logits[: self.samples], detach(q.logits[self.samples :])])
        return super().control(f, type(q)(logits=logits), noise, x, numbers, context)


@dataclass(frozen=True)
class ConditionTurned(dcv.Rebar):
    """REBAR with a z~ that is drawn given the other value of a variable that has two."""

    def control(self, f, q, noise, x, numbers, context):
        return super().control(f, q, noise, 1 - x, numbers, context)


@dataclass(frozen=True)
class SameRelaxation(dcv.Rebar):
    """REBAR with z itself in the place of z~."""

    def control(self, f, q, noise, x, numbers, context):
        z = relaxed_points(q, noise, x)[: self.samples]
        return numbers["scale"] * f(relax(q, q.xp.concat([z, z]), numbers["log_temperature"]))


@dataclass(frozen=True)
class OnePercentMore(dcv.Rebar):
    """REBAR that is a little too large."""

    def formula(self, q, evaluation, learned, weight, context):
        applied = super().formula(q, evaluation, learned, weight, context)
        return applied._replace(gradient=1.01 * applied.gradient)


def leaking_value_at(estimator, f, q, learned, noise):
    """Return the mean whose control variate is differentiated in all that f closes over, as one backward pass would."""
    held = q.detach()
    x = estimator.draw(held, noise)
    repeated = held.broadcast_to((estimator.needs.relaxed_points, *held.batch_shape))
    control = estimator.control(f, repeated, noise, x, learned.numbers, None)[estimator.samples :]
    return value_at(estimator, f, q, learned, noise) - jnp.mean(control - detach(control), axis=0)
