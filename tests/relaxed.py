"""REBAR and RELAX set up for the tests, and the ways in which the two are known to go wrong."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from doublecv.estimators.rebar import relaxed_points

import doublecv as dcv
from doublecv.arrays import detach, namespace
from doublecv.estimators.concrete import relax
from doublecv.jax import expect

KINDS = ("rebar", "relax")


def make_relaxed(kind, event_shape, samples=1, cls=None, **values):
    """The estimator and its coefficients, away from their start where `values` say so."""
    if kind == "rebar":
        estimator = (cls or dcv.Rebar)(samples)
    else:
        generator = np.random.default_rng(5)
        parameters = {
            "inner": 0.4 * generator.normal(size=(int(np.prod(event_shape)), 4)),
            "outer": 0.1 * generator.normal(size=4),
        }
        axes = len(event_shape)

        def apply(parameters, z):
            flat = z.reshape(*z.shape[: z.ndim - axes], -1)
            return namespace(z).tanh(flat @ parameters["inner"]) @ parameters["outer"]

        estimator = dcv.Relax(samples, network=parameters, apply=apply)
    coefficients = estimator.coefficients()
    for name, value in values.items():
        assert name in coefficients
        coefficients[name] = value
    return estimator, coefficients


@dataclass(frozen=True)
class ConditionalHeld(dcv.Rebar):
    """REBAR without the derivative of the conditional sample in the logits."""

    def control(self, f, q, noise, x, coefficients):
        logits = q.xp.concat([q.logits[: self.samples], detach(q.logits[self.samples :])])
        return super().control(f, type(q)(logits=logits), noise, x, coefficients)


@dataclass(frozen=True)
class ConditionTurned(dcv.Rebar):
    """REBAR with a z~ that is drawn given the other value of a variable that has two."""

    def control(self, f, q, noise, x, coefficients):
        return super().control(f, q, noise, 1 - x, coefficients)


@dataclass(frozen=True)
class SameRelaxation(dcv.Rebar):
    """REBAR with z itself in the place of z~."""

    def control(self, f, q, noise, x, coefficients):
        z = relaxed_points(q, noise, x)[: self.samples]
        return coefficients["scale"] * f(relax(q, q.xp.concat([z, z]), coefficients))


@dataclass(frozen=True)
class OnePercentMore(dcv.Rebar):
    """REBAR that is a little too large."""

    def formula(self, q, evaluation, coefficients):
        return 1.01 * super().formula(q, evaluation, coefficients)


def leaking_expect(f, q, estimator, coefficients, key):
    """`expect` whose control variate is differentiated in all that f closes over, as one backward pass would do it."""
    held = q.detach()
    noise = jax.random.uniform(key, estimator.noise_shape(held), held.logits.dtype)
    x = estimator.draw(held, noise)
    repeated = held.broadcast_to((estimator.relaxed_points, *held.batch_shape))
    control = estimator.control(f, repeated, noise, x, coefficients)[estimator.samples :]
    return expect(f, q, estimator, coefficients, key) - jnp.mean(control - detach(control), axis=0)
