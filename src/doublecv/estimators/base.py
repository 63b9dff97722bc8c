"""What every estimator is: a frozen dataclass with a handful of named parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from doublecv.arrays import Array, Shape
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.estimators.couplings import Coupling, Independent
from doublecv.estimators.evaluation import Evaluation

if TYPE_CHECKING:
    from jaxtyping import Float

REASONS = {
    2: ": a sample's baseline is made from the other samples",
    4: ": the surrogate of an antithetic pair is made from the other pairs",
}
"""Why K cannot be less than this."""


@dataclass(frozen=True)
class Estimator(ABC):
    """An unbiased estimator of d/dlogits E_q f from f at K samples of q.

    A subclass states its name and its formula and, where they differ from those given here, the facts about it: its
    coefficients, how its samples are coupled, what it needs of f. All that acts on these facts is final here, so that
    one file shows all that an estimator does.

    Attributes:
        samples: K, the number of samples at which f is evaluated.
    """

    samples: int

    @final
    def __post_init__(self) -> None:
        if isinstance(self.samples, bool) or not isinstance(self.samples, int):
            raise TypeError(f"samples must be an integer, got {self.samples!r}")
        if self.samples < self.minimum_samples:
            raise ValueError(
                f"samples must be at least {self.minimum_samples} for {type(self).__name__}, got {self.samples}"
                + REASONS.get(self.minimum_samples, "")
            )
        if self.samples % self.multiple_of:
            raise ValueError(
                f"samples must be a multiple of {self.multiple_of} for {type(self).__name__}, got {self.samples}: "
                f"its samples come in antithetic pairs; ARMS takes any number of coupled samples"
            )
        self.check_options()

    def check_options(self) -> None:  # noqa: B027, because most estimators have no option
        """Raise where a field of the subclass has a value that it cannot have."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which the registry makes this estimator."""

    @property
    def minimum_samples(self) -> int:
        """The least K."""
        return 1

    @property
    def multiple_of(self) -> int:
        """Of what K must be a multiple."""
        return 1

    @property
    def families(self) -> tuple[type[Distribution], ...]:
        """The distributions that the estimator is for."""
        return (Bernoulli, Categorical)

    @property
    def needs_df(self) -> bool:
        """Whether the formula uses the gradient of f in x at the samples."""
        return False

    @property
    def needs_mean(self) -> bool:
        """Whether the formula uses f and its gradient in x at the mean of q."""
        return False

    @property
    def relaxed_points(self) -> int:
        """At how many relaxed points, besides the samples, the estimator evaluates its own control variate."""
        return 0

    @property
    def sampler(self) -> Coupling:
        """How the K samples depend on each other."""
        return Independent()

    @property
    def evaluations(self) -> int:
        """The number of points at which one estimate evaluates f."""
        return self.samples + self.needs_mean + self.relaxed_points

    def coefficients(self) -> dict[str, Any]:
        """The learnable coefficients and their start."""
        return {}

    @property
    def averaged(self) -> tuple[str, ...]:
        """The names of coefficients that are running averages: rate 0.01 of plain descent, and no other, moves them."""
        return ()

    def numbers(self, coefficients: Mapping[str, Any]) -> dict[str, Any]:
        """The coefficients as they enter the equation, where they are learned as something else."""
        return dict(coefficients)

    def control(
        self,
        f: Callable[[Array], Array],
        q: Distribution,
        noise: Float[Array, "..."],
        x: Float[Array, "K *logits"],
        coefficients: Mapping[str, Any],
    ) -> Float[Array, "relaxed *batch"]:
        """The control variate at the relaxed points, which the front-end differentiates in q's logits.

        q has an axis of `relaxed_points` in front, so that each point has logits of its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no relaxed points")

    @final
    def noise_shape(self, q: Distribution) -> Shape:
        """The shape of the uniform noise on [0, 1) that `draw` wants."""
        return self.sampler.noise_shape(q, self.samples)

    @final
    def draw(self, q: Distribution, noise: Float[Array, "..."]) -> Float[Array, "K *logits"]:
        """K samples of q, coupled as the estimator wants them."""
        self.check_family(q)
        wanted = self.noise_shape(q)
        if tuple(noise.shape) != wanted:
            raise ValueError(
                f"noise must have shape {wanted} (estimator.noise_shape(q)), got shape {tuple(noise.shape)}"
            )
        return self.sampler.draw(q, noise)

    @final
    def gradient(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """The estimate of d/dlogits E_q f, shaped like the logits."""
        self.check_family(q)
        self.check_coefficients(coefficients)
        self.check_evaluation(q, evaluation)
        return self.formula(q, evaluation, coefficients)

    @final
    def gradient_and_loss(
        self,
        q: Distribution,
        evaluation: Evaluation,
        coefficients: Mapping[str, Any],
        weight: Float[Array, "*batch"],
    ) -> tuple[Float[Array, "*logits"], Float[Array, ""] | None]:
        """The estimate and what the coefficients minimise besides its square, for a front-end to differentiate.

        `weight` is the weight that each batch element has in the loss.
        """
        self.check_family(q)
        self.check_coefficients(coefficients)
        self.check_evaluation(q, evaluation)
        return self.formula_and_loss(q, evaluation, coefficients, weight)

    @abstractmethod
    def formula(
        self, q: Distribution, evaluation: Evaluation, coefficients: Mapping[str, Any]
    ) -> Float[Array, "*logits"]:
        """The estimator's equation; `gradient` calls it once the arguments are checked."""

    def formula_and_loss(
        self,
        q: Distribution,
        evaluation: Evaluation,
        coefficients: Mapping[str, Any],
        weight: Float[Array, "*batch"],
    ) -> tuple[Float[Array, "*logits"], Float[Array, ""] | None]:
        """The estimator's equation, and None where its coefficients have nothing to minimise but the estimate's square.

        A coefficient that is learned from something else is held constant in the equation, and enters the loss.
        """
        return self.formula(q, evaluation, coefficients), None

    @final
    def check_family(self, q: Distribution) -> None:
        """Raise unless q is a distribution that the estimator is for."""
        if not isinstance(q, self.families):
            wanted = " or ".join(f"doublecv.{family.__name__}" for family in self.families)
            remedy = (
                "; for Categorical take RLOO or DoubleCV with independent samples"
                if isinstance(q, Categorical)
                else f"; make one from logits, for example doublecv.{self.families[0].__name__}(logits=logits)"
            )
            raise TypeError(f"q must be a {wanted} for {type(self).__name__}, got {type(q).__name__}{remedy}")

    @final
    def check_coefficients(self, coefficients: Mapping[str, Any]) -> None:
        """Raise unless the coefficients have the names that the estimator's own have."""
        wanted = self.coefficients().keys()
        if not isinstance(coefficients, Mapping):
            raise TypeError(
                f"coefficients must be a dict like estimator.coefficients(), got {type(coefficients).__name__}"
            )
        if missing := sorted(wanted - coefficients.keys()):
            raise ValueError(
                f"coefficients of {type(self).__name__} lack {missing}, got {sorted(coefficients)}; "
                f"start from estimator.coefficients()"
            )
        if unknown := sorted(coefficients.keys() - wanted):
            raise ValueError(f"coefficients of {type(self).__name__} are {sorted(wanted)}, got {unknown} besides")

    @final
    def check_evaluation(self, q: Distribution, evaluation: Evaluation) -> None:
        """Raise unless the evaluation holds what the formula needs, in the shapes that it wants."""
        batch, event = q.batch_shape, q.event_shape
        wanted: dict[str, Shape] = {"x": (self.samples, *batch, *event), "f": (self.samples, *batch)}
        if self.needs_df:
            wanted["df"] = wanted["x"]
        if self.needs_mean:
            wanted |= {"f_mean": batch, "df_mean": (*batch, *event)}
        if self.relaxed_points:
            wanted |= {"control": (self.relaxed_points, *batch), "dcontrol": (self.relaxed_points, *batch, *event)}
        for field, shape in wanted.items():
            given = getattr(evaluation, field)
            if given is None:
                raise ValueError(f"evaluation.{field} is None, but {type(self).__name__} needs it, with shape {shape}")
            if tuple(given.shape) != shape:
                raise ValueError(f"evaluation.{field} must have shape {shape}, got shape {tuple(given.shape)}")
