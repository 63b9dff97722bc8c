"""Diagnostics in PyTorch: variance, best coefficients, comparison, recommendation and a check of f."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from doublecv.checks import check_estimator, check_function
from doublecv.diagnostics import coefficients, comparison, recommendation
from doublecv.diagnostics.comparison import TRAINING_STEPS, Comparison
from doublecv.diagnostics.entrants import AnyEstimator, check_any_estimator
from doublecv.diagnostics.meter import Meter, Variance, add, empty, summarize
from doublecv.diagnostics.one_by_one import SAMPLES, Check, verify
from doublecv.diagnostics.problem import (
    FIT_STREAM,
    Measure,
    Problem,
    check_distribution,
    made_distribution,
    total_gradient,
)
from doublecv.diagnostics.recommendation import CANDIDATES, Recommendation
from doublecv.diagnostics.timing import ROUNDS
from doublecv.distributions import Distribution
from doublecv.estimators import RLOO, Estimator, Learned
from doublecv.exact import exact_gradient
from doublecv.sequential import Sequential
from doublecv.torch.drawing import Drawn, draw_path, uniform
from doublecv.torch.evaluating import Function, checked_function, evaluate
from doublecv.torch.expectation import PATIENCE, Expectation
from doublecv.torch.families import as_family

if TYPE_CHECKING:
    from jaxtyping import Float

NUMBERS_AT_ONCE = 2**20
"""The coordinates of the gradients that are held at once, at most, if that is more than one gradient's."""

TRAINING_RATE = 1e-2
"""The rate of Adam in the short training of a state."""

AnyDistribution = Distribution | Sequential | torch.distributions.Distribution


def variance(
    f: Function,
    q: AnyDistribution,
    estimator: AnyEstimator,
    learned: Learned | None = None,
    *,
    generator: torch.Generator | None = None,
    draws: int = 1000,
    context: Float[Tensor, "*#batch features"] | None = None,
    has_aux: bool = False,
) -> Variance:
    """Return the variance of an estimator over independent draws, with its standard error.

    For a `Layers` or `Autoregressive` it is the variance of the sum over the samples of the gradients in the logits
    that they visited: of the gradient in numbers that are added to the logits of all samples, the biases of the layers.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=torch.zeros(2, 3))
    >>> measured = variance(lambda x: x.sum(-1) ** 2, q, dcv.RLOO(samples=2))
    >>> measured.standard_error < measured.variance
    True

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or torch.
        estimator: the estimator.
        learned: its learned state (`expectation.learned()`, or the result of `optimal_coefficients`); None for the
            initial one.
        generator: the source of the noise; torch's global generator if None.
        draws: the number of gradients.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")
    check_any_estimator(estimator)
    problem = TorchProblem.make(f, q, generator, context, has_aux)
    problem.check_entrant(estimator)
    return summarize(problem.measure(estimator, learned)(draws, 0))


def optimal_coefficients(
    f: Function,
    q: AnyDistribution,
    estimator: Estimator,
    *,
    generator: torch.Generator | None = None,
    draws: int | None = None,
    context: Float[Tensor, "*#batch features"] | None = None,
    has_aux: bool = False,
) -> Learned:
    r"""Return the coefficients of least variance, as a learned state for `Expectation.init`, `variance` and `compare`.

    The estimate is linear in them, :math:`g = g_0 + \sum_i c_i h_i`, so that they solve
    :math:`E[h h^T] c = -E[h g_0]`. Without `draws` the expectations are exact, by enumeration of all outcomes; with it
    they are means over that many draws.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=torch.zeros(2, 3))
    >>> learned = optimal_coefficients(lambda x: x.sum(-1), q, dcv.DoubleCV(samples=2))
    >>> round(float(learned.numbers["alpha"]), 3)
    -1.0

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or torch.
        estimator: an estimator that is linear in its coefficients.
        generator: the source of the noise; torch's global generator if None.
        draws: the number of draws; None for exact expectations.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
    """
    check_estimator(estimator)
    if draws is None and generator is not None:
        raise ValueError("draws is None, but a generator was given; say how many draws the means are over")
    if draws is not None and draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    problem = TorchProblem.make(f, q, generator, context, has_aux)
    if draws is None:
        if isinstance(problem.q, Sequential):
            raise TypeError(
                f"draws is None, but all paths of a {type(problem.q).__name__} cannot be enumerated; give draws"
            )

        def df(x: Tensor) -> Tensor:
            return evaluate(lambda x: (problem.f(x), None), x, estimator)[1]

        with torch.no_grad():
            return coefficients.optimal_coefficients(problem.f, problem.q, estimator, df=df)
    return problem.optimal_coefficients(estimator, draws)


def compare(
    f: Function,
    q: AnyDistribution | Callable[[], AnyDistribution],
    estimators: Iterable[AnyEstimator | str] | AnyEstimator | str,
    *,
    generator: torch.Generator | None = None,
    samples: int | Sequence[int] | None = None,
    draws: int = 1000,
    learned: Mapping[Any, Learned] | None = None,
    context: Float[Tensor, "*#batch features"] | None = None,
    has_aux: bool = False,
    differentiate_f: bool = True,
    steps: int = TRAINING_STEPS,
    rounds: int = ROUNDS,
) -> Comparison:
    """Measure estimators on the same f, q and random numbers: variance, cost, time per gradient and bias.

    The time is that of all gradients of a training step around f: in the logits, in the learned state and, with
    `differentiate_f`, in the leaves that f uses and that require a gradient; the median over rounds in which the
    estimators take turns. No `.grad` is changed. `doublecv.biased` has estimators with a bias that are in common use.

    >>> import doublecv as dcv
    >>> q = dcv.Bernoulli(logits=torch.zeros(2, 3))
    >>> table = compare(lambda x: x.sum(-1) ** 2, q, ["rloo", "reinmax"], samples=2, draws=100)
    >>> [row.name for row in table.rows]
    ['rloo', 'reinmax']

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or torch, or a function without arguments that makes it: the time then includes
            the function and the gradient in the leaves that it uses, as when an encoder makes the logits.
        estimators: estimators or names; the others' variances are printed relative to the first.
        generator: the source of the noise; torch's global generator if None.
        samples: one or several K, for each of which every estimator is measured; None to take estimators as they are.
        draws: the number of gradients of each.
        learned: learned states by the estimator or its name. Estimators without one are measured with the best
            coefficients from separate draws where they are linear in them, and otherwise after a short training.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
        differentiate_f: whether the time includes the gradient in what f uses, as when f is trained.
        steps: the length of the short training.
        rounds: the number of rounds of the timing; 0 for no timing.
    """
    problem = TorchProblem.make(f, q, generator, context, has_aux, differentiate_f)
    return comparison.compare(
        problem, estimators, samples=samples, draws=draws, learned=learned, steps=steps, rounds=rounds
    )


def recommend(
    f: Function,
    q: AnyDistribution | Callable[[], AnyDistribution],
    *,
    generator: torch.Generator | None = None,
    budget: float = 60.0,
    estimators: Sequence[AnyEstimator | str] | AnyEstimator | str = CANDIDATES,
    samples: int | Sequence[int] = recommendation.SAMPLES,
    context: Float[Tensor, "*#batch features"] | None = None,
    has_aux: bool = False,
    differentiate_f: bool = True,
) -> Recommendation:
    """Recommend the estimator and K with the least variance per second on this f, q and machine, by a pilot run.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or torch, or a function without arguments that makes it: the time then includes
            the function and the gradient in the leaves that it uses, as when an encoder makes the logits.
        generator: the source of the noise; torch's global generator if None.
        budget: the seconds that the pilot run may take.
        estimators: the candidates.
        samples: the numbers of samples, in the order in which they are tried while the budget lasts, two at a time.
        context: features of each batch element, for estimators that use them.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
        differentiate_f: whether the time includes the gradient in what f uses, as when f is trained.
    """
    problem = TorchProblem.make(f, q, generator, context, has_aux, differentiate_f)

    def has_gradient() -> bool:
        return check(f, problem.q, generator=generator, has_aux=has_aux).has_gradient

    return recommendation.recommend(problem, has_gradient, budget, estimators, samples)


def check(
    f: Function,
    q: AnyDistribution,
    estimator: Estimator | None = None,
    *,
    generator: torch.Generator | None = None,
    has_aux: bool = False,
) -> Check:
    """Verify on one drawn batch that f treats samples and batch elements one by one and meets an estimator's needs.

    It raises an error that names the remedy if f mixes samples or batch elements, returns a wrong shape, type or NaN,
    or has no gradient in x while the estimator needs one.

    >>> import doublecv as dcv
    >>> print(check(lambda x: x.sum(-1), dcv.Bernoulli(logits=torch.zeros(2, 3))))
    f maps [4, 2, 3] to [4, 2] (float32), treats samples and batch elements one by one, and its gradient in x exists.

    Args:
        f: a function from `[K, *batch, *event]` to `[K, *batch]`.
        q: the distribution, of doublecv or torch.
        estimator: the estimator that f is for; None to find out which ones can be used.
        generator: the source of the noise; torch's global generator if None.
        has_aux: whether f returns a pair of values and auxiliary output, which is not used.
    """
    problem = TorchProblem.make(f, q, generator, None, has_aux)
    if estimator is not None:
        check_estimator(estimator)
        problem.check_entrant(estimator)
    drawn = problem.draw(RLOO(samples=SAMPLES) if estimator is None else estimator, problem.generator(0))
    wide, x = drawn.held, drawn.x
    checked = checked_function(drawn.f, wide, False, drawn.q.logits.dtype)

    def values_at(points: Tensor) -> Tensor:
        with torch.no_grad():
            return checked(points.clone())[0]

    return verify(wide, x, values_at, lambda points: evaluate(checked, points)[1], estimator)


@dataclass(frozen=True, eq=False)
class TorchProblem(Problem):
    """f and q in PyTorch.

    Attributes:
        f: the function, without auxiliary output.
        q: the distribution, one of doublecv.
        seed: the seed of all streams.
        context: features of each batch element.
        differentiate_f: whether a step includes the gradient in the leaves that f uses.
        make_q: a function that makes q, if a step includes it and the gradient in the leaves that it uses.
    """

    f: Function
    q: Distribution | Sequential
    seed: int
    context: Any
    differentiate_f: bool
    make_q: Callable[[], AnyDistribution] | None = None

    @classmethod
    def make(
        cls, f: Any, q: Any, generator: Any, context: Any, has_aux: bool = False, differentiate_f: bool = True
    ) -> TorchProblem:
        """Check the arguments and return the problem."""
        check_function(f, q)
        q, make_q = made_distribution(q)
        family = as_family(q)
        check_distribution(family)
        logits = family.like if isinstance(family, Sequential) else family.logits
        if not isinstance(logits, Tensor | None):
            raise TypeError(
                f"logits of q must be a torch tensor, got {type(logits).__name__}; use doublecv.jax for JAX arrays"
            )
        device = "cpu" if generator is None else generator.device
        seed = int(torch.randint(2**31, (), generator=generator, device=device))
        values_only = (lambda x: f(x)[0]) if has_aux else f
        held = family if isinstance(family, Sequential) else family.detach()
        return cls(values_only, held, seed, context, differentiate_f, make_q)

    def optimal_coefficients(self, estimator: Estimator, draws: int) -> Learned:
        """Return the coefficients of least variance from draws of `FIT_STREAM`."""
        linear = coefficients.require_linear(estimator)
        if linear is None:
            return Learned({}, {}, {})
        held = self.q.detach()
        held = held if isinstance(held, Sequential) else held.widen()
        expectation, generator = self._expectation(linear, None), self.generator(FIT_STREAM)
        total = 0.0
        for _ in range(draws):
            with torch.no_grad():
                estimate = expectation.estimate(self.f, held, context=self.context, generator=generator)
                products = coefficients.products_of_parts(linear.parts(estimate.q, estimate.evaluation), linear)
            total = total + products.double() / draws
        return coefficients.solve(linear, total)

    def train(self, estimator: Estimator, steps: int) -> Learned:
        """Return the learned state after some steps on this problem."""
        expectation, generator = self._expectation(estimator, None), self.generator(FIT_STREAM)
        assert isinstance(self.q, Distribution), "the state of every estimator on paths has best coefficients"
        logits, parameters = self.q.logits.detach().requires_grad_(), list(expectation.parameters())
        optimizer = torch.optim.Adam(parameters, lr=TRAINING_RATE) if parameters else None
        for _ in range(steps):
            value = expectation(self.f, self.q.with_logits(logits), context=self.context, generator=generator)
            _, *gradients = torch.autograd.grad(value.mean(), [logits, *parameters])
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            if optimizer is not None:
                optimizer.step()
        learned = expectation.learned()
        return learned._replace(numbers={name: value.detach() for name, value in learned.numbers.items()})

    def measure(self, estimator: AnyEstimator, learned: Learned | None) -> Measure:
        """Return a function that draws gradients."""
        expectation = self._expectation(estimator, learned) if isinstance(estimator, Estimator) else None
        held = self.q.detach()

        def gradient(generator: torch.Generator) -> Tensor:
            if expectation is None:
                return self._biased_gradient(estimator, generator)
            estimate = expectation.estimate(self.f, held, context=self.context, generator=generator)
            found: Tensor = total_gradient(estimate.q, estimate.gradient)
            return found

        def run(draws: int, stream: int) -> Meter:
            generator, meter, done = self.generator(stream), None, 0
            while done < draws:
                gradients = [gradient(generator)]
                chunk = max(1, min(100, NUMBERS_AT_ONCE // max(1, gradients[0].numel()), draws - done))
                gradients += [gradient(generator) for _ in range(chunk - 1)]
                stacked = torch.stack(gradients)
                stacked = stacked.to(torch.promote_types(stacked.dtype, torch.float32))
                meter = add(empty(stacked[0]) if meter is None else meter, stacked)
                done += chunk
            assert meter is not None
            return meter

        return run

    def step(self, estimator: AnyEstimator) -> Callable[[], object]:
        """Return a function that computes all gradients of a training step around f, once."""
        generator = self.generator(FIT_STREAM)
        if not isinstance(estimator, Estimator):
            return self._biased_step(estimator, generator)
        expectation = self._expectation(estimator, None).train()
        # The parameters stay where they are, which is not a mistake here.
        expectation._watched = PATIENCE + 1, []
        if isinstance(self.q, Sequential):
            return self._sequential_step(expectation, self.q, generator)
        given, logits = self.q, self.q.logits.detach().requires_grad_()

        def make_q() -> Distribution:
            made: Distribution = given if self.make_q is None else as_family(self.make_q())
            return made if made.logits.requires_grad else made.with_logits(logits)

        def loss() -> Tensor:
            mean: Tensor = expectation(self.f, make_q(), context=self.context, generator=generator).mean()
            return mean

        inputs = _leaves(loss() if self.differentiate_f else make_q().logits)
        own = [] if self.differentiate_f else list(expectation.parameters())
        return lambda: torch.autograd.grad(loss(), [*inputs, *own], allow_unused=True)

    def _sequential_step(
        self, expectation: Expectation, q: Sequential, generator: torch.Generator
    ) -> Callable[[], object]:
        """Return a training step in the leaves that f and the functions of q use."""
        own = list(expectation.parameters())

        def loss() -> Tensor:
            mean: Tensor = expectation(self.f, q, context=self.context, generator=generator).mean()
            return mean

        visited = q.visit(expectation.estimator.samples, uniform(generator)).q.logits
        leaves = _leaves(loss() if self.differentiate_f else visited.sum(), excluded=own)
        if not own and not leaves:
            return lambda: expectation.estimate(self.f, q, context=self.context, generator=generator)
        return lambda: torch.autograd.grad(loss(), [*own, *leaves], allow_unused=True)

    def exact_gradient(self) -> Float[np.ndarray, "*logits"]:
        """Return the exact gradient by enumeration."""
        assert isinstance(self.q, Distribution)
        with torch.no_grad():
            return np.asarray(exact_gradient(self.f, self.q.detach()).cpu(), dtype=float)

    def generator(self, stream: int) -> torch.Generator:
        """Return the source of random numbers of a stream."""
        like = self.q.like if isinstance(self.q, Sequential) else self.q.logits
        return torch.Generator("cpu" if like is None else like.device).manual_seed(self.seed + stream)

    def draw(self, estimator: Estimator, generator: torch.Generator) -> Drawn:
        """Draw the samples of one estimate."""
        if isinstance(self.q, Sequential):
            return draw_path(self.f, self.q, estimator, generator)
        wide, noise = self.q.detach().widen(), self.draw_noise(estimator, generator)
        return Drawn(self.f, self.q, wide, noise, estimator.draw(wide, noise))

    def draw_noise(self, estimator: AnyEstimator, generator: torch.Generator) -> Tensor:
        """Return the uniform noise of the samples of one estimate."""
        assert isinstance(self.q, Distribution)
        wide = self.q.detach().widen()
        shape, logits = estimator.noise_shape(wide), wide.logits
        return torch.rand(shape, dtype=logits.dtype, device=logits.device, generator=generator)

    def _expectation(self, estimator: Estimator, learned: Learned | None) -> Expectation:
        return Expectation(estimator).init(self.q, context=self.context, learned=learned)

    def _biased_gradient(self, estimator: AnyEstimator, generator: torch.Generator) -> Tensor:
        assert not isinstance(estimator, Estimator)
        assert isinstance(self.q, Distribution)
        wide = self.q.detach().widen()
        noise = self.draw_noise(estimator, generator)
        x = estimator.draw(wide, noise)
        _, df, _ = evaluate(checked_function(self.f, wide, False, self.q.logits.dtype), x)
        gradient: Tensor = estimator.estimate(wide, noise, x, df)
        return gradient

    def _biased_step(self, estimator: AnyEstimator, generator: torch.Generator) -> Callable[[], object]:
        assert not isinstance(estimator, Estimator)
        assert isinstance(self.q, Distribution)
        wide = self.q.detach().widen()
        checked = checked_function(self.f, wide, False, self.q.logits.dtype)

        def values(noise: Tensor) -> tuple[Tensor, Tensor]:
            x = estimator.draw(wide, noise).requires_grad_()
            return x, checked(x.clone())[0].sum()

        x, total = values(self.draw_noise(estimator, generator))
        leaves = _leaves(total, excluded=[x]) if self.differentiate_f else []

        def step() -> object:
            noise = self.draw_noise(estimator, generator)
            x, total = values(noise)
            df, *of_leaves = torch.autograd.grad(total, [x, *leaves], allow_unused=True)
            return estimator.estimate(wide, noise, x.detach(), df), of_leaves

        return step


def _leaves(result: Tensor, excluded: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return the leaves of the graph of a result that require a gradient."""
    if not result.requires_grad:
        return []
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [torch.autograd.graph.get_gradient_edge(result).node]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and not any(variable is tensor for tensor in excluded):
            found[id(variable)] = variable
        waiting += [following for following, _ in node.next_functions]
    return list(found.values())
