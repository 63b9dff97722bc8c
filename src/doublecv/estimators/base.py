r"""The interface of every estimator: a frozen value, a description of its needs, one `init` and one `apply`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

from doublecv.arrays import Array, Shape
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.estimators.couplings import Coupling, Independent
from doublecv.estimators.evaluation import Evaluation
from doublecv.paths import Blocks

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Needs:
    """Describe what an estimator asks of f, of q and of the caller.

    Attributes:
        gradient: whether the formula uses the gradient of f in x at the samples.
        mean: whether the formula uses f and its gradient in x at the mean of q.
        expected_f: whether the formula uses the exact mean of f; a function from q to that mean, or True to find it by
            enumeration.
        relaxed_points: the number of relaxed points at which the control variate is evaluated, in addition to the
            samples.
        families: the distributions that the estimator supports.
        minimum_samples: the smallest K.
        multiple_of: the number that K must be a multiple of.
        coupling: how the K samples depend on each other.
        context: whether the estimator uses a context, features of each batch element.
        sized: whether the sizes of the learned state come from q or the context.
        path: whether the variables may be of several kinds, and the samples paths with visited logits of their own.
        bound: whether f is the logarithm of a weight and the objective is the logarithm of the weights' mean, in place
            of the mean of f.
        coefficients: the names of the coefficients, where the estimate is linear in them.
        derivatives: whether the formula returns the derivatives of its numbers; it does so for coefficients.
    """

    gradient: bool = False
    mean: bool = False
    expected_f: bool | Callable[[Distribution], Array] = False
    relaxed_points: int = 0
    families: tuple[type[Distribution], ...] = (Bernoulli, Categorical)
    minimum_samples: int = 1
    multiple_of: int = 1
    coupling: Coupling = Independent()  # noqa: RUF009, because couplings are immutable
    context: bool = False
    sized: bool = False
    path: bool = False
    bound: bool = False
    coefficients: tuple[str, ...] = ()
    derivatives: bool = False


class Learned(NamedTuple):
    """Hold what an estimator has learned.

    Attributes:
        numbers: numbers that descend along a gradient, by name.
        averages: running averages over earlier steps, by name. Their gradient is always 0.
        statistics: zeros, by name. Their cotangent carries the statistics of a step to `update`; their value is never
            read.
    """

    numbers: dict[str, Any]
    averages: dict[str, Any]
    statistics: dict[str, Any]


NOTHING = Learned({}, {}, {})
"""The learned state of an estimator that learns nothing."""


class Applied(NamedTuple):
    """Hold the result of an estimator's formula.

    Attributes:
        gradient: the estimate of the gradient in the logits; per sample where q has visited logits.
        statistics: this step's statistics, sums over batch elements, with the names of `Learned.statistics`.
        derivatives: a function from a cotangent of `gradient` to the derivatives of the numbers, where the estimate is
            linear in them or `needs.derivatives`; None where automatic differentiation must find them.
        loss: what the numbers minimise in addition to the squared estimate; None where there is no such thing.
    """

    gradient: Float[Array, "*logits"]
    statistics: dict[str, Any]
    derivatives: Callable[[Float[Array, "*logits"]], dict[str, Any]] | None = None
    loss: Float[Array, ""] | None = None


NAMES_OF_SAMPLES = ("K", "k", "n", "n_samples", "num_samples", "sample_count", "S")
"""What other libraries call the number of samples."""


@dataclass(frozen=True)
class Estimator(ABC):
    r"""Estimate :math:`\nabla_{logits} E_q f` without bias from f at K samples of q.

    An estimator is a frozen dataclass of its options. A subclass defines `needs`, `start`, `formula` and `advance`;
    everything that acts on them is final. `FixedEstimator`, `LinearEstimator` and `RelaxedEstimator` are the starting
    points for estimators that learn nothing, that are linear in their coefficients, and that have relaxed points.

    Attributes:
        samples: K, the number of samples at which f is evaluated.
    """

    samples: int

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Explain a wrong keyword before the dataclass refuses it."""
        known = [field.name for field in fields(cls) if field.init]
        for option in options:
            if option not in known:
                remedy = f"its options are {', '.join(known)}"
                if option in NAMES_OF_SAMPLES:
                    remedy = "the number of samples is called samples: samples=4"
                raise TypeError(f"{cls.__name__} has no option {option}; {remedy}")
        return super().__new__(cls)

    @final
    def __post_init__(self) -> None:
        if isinstance(self.samples, bool) or not isinstance(self.samples, int):
            raise TypeError(f"samples must be an integer, got {self.samples!r}")
        self.check_options()
        needs, name = self.needs, type(self).__name__
        if self.samples < needs.minimum_samples:
            reason = ": the baseline of a sample is made from other samples" if needs.minimum_samples > 1 else ""
            raise ValueError(f"samples must be at least {needs.minimum_samples} for {name}, got {self.samples}{reason}")
        if self.samples % needs.multiple_of:
            raise ValueError(
                f"samples must be a multiple of {needs.multiple_of} for {name}, got {self.samples}: its samples come "
                f"in antithetic pairs; ARMS takes any number of coupled samples"
            )

    def check_options(self) -> None:  # noqa: B027, because most estimators have no options to check
        """Raise if an option has a value that it cannot have."""

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """Return what the estimator asks of f, of q and of the caller."""

    @abstractmethod
    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return the initial learned state as NumPy arrays; q and context are given where `needs.sized`."""

    @abstractmethod
    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        """Compute the estimator's equation; `apply` calls it once the arguments are checked."""

    @abstractmethod
    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Move the running averages by the statistics of one step."""

    @property
    @final
    def evaluations(self) -> int:
        """Return the number of points at which one estimate evaluates f."""
        return self.samples + self.needs.mean + self.needs.relaxed_points

    @property
    @final
    def gives_derivatives(self) -> bool:
        """Return whether the formula returns the derivatives of the numbers, without automatic differentiation."""
        return bool(self.needs.coefficients) or self.needs.derivatives

    @final
    def init(self, q: Distribution | None = None, context: Float[Array, "*#batch features"] | None = None) -> Learned:
        """Return the initial learned state, as NumPy arrays.

        Args:
            q: the distribution; only its sizes are used, and only where `needs.sized`.
            context: features of each batch element; only its last axis is used.
        """
        if context is not None and not getattr(context, "shape", ()):
            given = "a scalar" if hasattr(context, "shape") else type(context).__name__
            raise TypeError(f"context must be an array [*batch, features], got {given}")
        if q is None and self.needs.sized:
            raise ValueError(f"q is None, but the learned state of {type(self).__name__} has sizes that come from q")
        if q is not None:
            self.check_family(q)
        return self.start(q, context)

    @final
    def noise_shape(self, q: Distribution) -> Shape:
        """Return the shape of the uniform noise on [0, 1) that `draw` takes."""
        return self.needs.coupling.noise_shape(q, self.samples)

    @final
    def draw(self, q: Distribution, noise: Float[Array, "..."]) -> Float[Array, "K *logits"]:
        """Draw K samples of q, coupled as the estimator needs them."""
        self.check_family(q)
        wanted = self.noise_shape(q)
        if tuple(noise.shape) != wanted:
            raise ValueError(
                f"noise must have shape {wanted} (estimator.noise_shape(q)), got shape {tuple(noise.shape)}"
            )
        return self.needs.coupling.draw(q, noise)

    @final
    def apply(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned = NOTHING,
        weight: Float[Array, "*batch"] | None = None,
        context: Float[Array, "*#batch features"] | None = None,
    ) -> Applied:
        """Check the arguments and compute the estimate.

        Args:
            q: the distribution.
            evaluation: f at the samples and whatever else `needs` names.
            learned: the learned state, at first `init(q, context)`.
            weight: the absolute weight that each batch element has in the loss; None for the same weight for all.
            context: features of each batch element.
        """
        self.check_family(q)
        self.check_learned(learned)
        self.check_evaluation(q, evaluation)
        if weight is None:
            weight = q.xp.ones_like(evaluation.f[0])
        return self.formula(q, evaluation, learned, weight, context)

    @final
    def check_family(self, q: Distribution) -> None:
        """Raise unless q is a distribution that the estimator supports."""
        needs, name = self.needs, type(self).__name__
        if isinstance(q, Blocks):
            if needs.path:
                return
            raise TypeError(
                f"q is a {'path, whose variables depend on each other' if q.visited else 'product of several kinds'}, "
                f"which {name} does not support; take Reinforce, RLOO, DoubleCV, HalfDoubleCV or QuadraticDoubleCV"
            )
        if not isinstance(q, needs.families):
            wanted = " or ".join(f"doublecv.{family.__name__}" for family in needs.families)
            remedy = (
                "; for Categorical take RLOO, DoubleCV or QuadraticDoubleCV"
                if isinstance(q, Categorical)
                else f"; make one from logits, for example doublecv.{needs.families[0].__name__}(logits=logits)"
            )
            raise TypeError(f"q must be a {wanted} for {name}, got {type(q).__name__}{remedy}")

    @property
    def held_names(self) -> tuple[str, ...]:
        """Return the names of all numbers that fix the estimate without running averages."""
        return self.needs.coefficients

    @final
    def check_learned(self, learned: Learned, q: Distribution | None = None) -> None:
        """Raise unless `learned` has the names of the result of `init`; q is needed where sizes come from it."""
        if not isinstance(learned, Learned):
            raise TypeError(
                f"learned must be the learned state of the estimator (state.learned), got {type(learned).__name__}"
            )
        # Fixed coefficients, as `optimal_coefficients` returns them, take the place of those that are learned.
        fixed = not learned.averages and learned.numbers.keys() in self._fixed_names
        if (self.needs.sized and q is None) or (fixed and not self.needs.sized):
            return
        wanted_names = self._names if q is None else self.init(q)
        for field, wanted, given in zip(Learned._fields, wanted_names, learned, strict=True):
            if wanted.keys() != given.keys():
                raise ValueError(
                    f"learned.{field} of {type(self).__name__} must have the names {sorted(wanted)}, got "
                    f"{sorted(given)}; start from init"
                )
        if not self.needs.sized:
            self._check_shapes(learned.averages)

    def _check_shapes(self, averages: Mapping[str, Any]) -> None:
        """Raise unless the averages have the shapes of the result of `init`; numbers may come per batch element."""
        for name, wanted in self._names.averages.items():
            given = tuple(averages[name].shape)
            if given != wanted.shape:
                raise ValueError(
                    f"learned.averages[{name!r}] of {type(self).__name__} must have shape {wanted.shape}, got {given}; "
                    f"it is the state of another estimator, start from init"
                )

    @cached_property
    def _fixed_names(self) -> tuple[frozenset[str], ...]:
        """Return the names that numbers have which fix the estimate, with and without more than coefficients."""
        return frozenset(self.needs.coefficients), frozenset(self.held_names)

    @cached_property
    def _names(self) -> Learned:
        """Return a learned state with the right names, for a comparison; made once because it takes long."""
        return self.init()

    @final
    def check_evaluation(self, q: Distribution, evaluation: Evaluation) -> None:
        """Raise unless the evaluation holds what the formula needs, with the right shapes."""
        batch, event, needs = q.batch_shape, q.event_shape, self.needs
        wanted: dict[str, Shape] = {"x": (self.samples, *batch, *event), "f": (self.samples, *batch)}
        if needs.gradient:
            wanted["df"] = wanted["x"]
        if needs.mean:
            wanted |= {"f_mean": batch, "df_mean": (*batch, *event)}
        if needs.expected_f:
            wanted["expected_f"] = batch
        if points := needs.relaxed_points:
            wanted |= {"control": (points, *batch), "dcontrol": (points, *batch, *event)}
        for field, shape in wanted.items():
            given = getattr(evaluation, field)
            if given is None:
                raise ValueError(f"evaluation.{field} is None, but {type(self).__name__} needs it, with shape {shape}")
            if tuple(given.shape) != shape:
                raise ValueError(f"evaluation.{field} must have shape {shape}, got shape {tuple(given.shape)}")


def not_an_estimator(argument: str, given: object) -> TypeError:
    """Return the error for an argument that should be an estimator, with what was probably meant."""
    got = type(given).__name__
    if isinstance(given, type) and issubclass(given, Estimator):
        got = f"the class {given.__name__}; call it first, for example {given.__name__}(samples=4)"
    elif isinstance(given, str):
        got = f"the name {given!r}; make it by doublecv.make({given!r}, samples=4)"
    return TypeError(f"{argument} must be a doublecv estimator such as doublecv.RLOO(samples=2), got {got}")


class FixedEstimator(Estimator):
    """Provide the base of estimators that learn nothing; a subclass defines `needs` and `estimate`."""

    @abstractmethod
    def estimate(self, q: Distribution, evaluation: Evaluation) -> Float[Array, "*logits"]:
        """Compute the estimator's equation."""

    @final
    def start(self, q: Distribution | None, context: Float[Array, "*#batch features"] | None) -> Learned:
        """Return nothing."""
        return NOTHING

    @final
    def formula(
        self,
        q: Distribution,
        evaluation: Evaluation,
        learned: Learned,
        weight: Float[Array, "*batch"],
        context: Float[Array, "*#batch features"] | None,
    ) -> Applied:
        """Compute the estimator's equation."""
        return Applied(self.estimate(q, evaluation), {})

    @final
    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing."""
        return {}


class DescendingEstimator(Estimator):
    """Provide the base of estimators that learn numbers by descent and have no running averages."""

    @final
    def advance(self, averages: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing."""
        return {}


class RelaxedEstimator(Estimator):
    """Provide the base of estimators whose control variate is evaluated at relaxed points."""

    @abstractmethod
    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "..."],
        x: Float[Array, "K *logits"],
        numbers: Mapping[str, Any],
        context: Float[Array, "*#batch features"] | None,
    ) -> Float[Array, "relaxed *batch"]:
        """Return the control variate at the relaxed points, which the front-end differentiates in q's logits.

        q has an axis of `needs.relaxed_points` in front, so that each point has logits of its own. So has every number
        that is a scalar in the learned state: it comes with the shape `[relaxed, *batch]`, which lets the front-end
        leave out the derivatives of batch elements that do not count.
        """
