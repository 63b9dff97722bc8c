"""`Expectation` in PyTorch: a module whose parameters and buffers are the learned state of an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from doublecv.arrays import require_floating
from doublecv.checks import check_estimator, check_function, check_pullback, check_sequential
from doublecv.distributions import Distribution
from doublecv.estimators import Estimator, Evaluation, Learned, LinearEstimator
from doublecv.sequential import Sequential
from doublecv.torch.drawing import Drawn, draw_path, uniform
from doublecv.torch.evaluating import (
    Function,
    Watched,
    check_gradient_exists,
    checked_function,
    evaluate,
    evaluate_side,
    formulas,
    leaves_of,
)
from doublecv.torch.families import as_family
from doublecv.torch.nodes import Pullback, Rule, auxiliary, combine, gradients, mean, sample, total

if TYPE_CHECKING:
    from jaxtyping import Float

PATIENCE = 100
"""The number of backward passes after which learned parameters that never moved cause a warning."""


CHECK_EVERY = 200
"""The number of backward passes from one check of what reaches the samples to the next.

A check costs one more backward pass of f. It is also made whenever f has kept the samples themselves. What else f has
kept, such as a hidden layer, is not seen: PyTorch adds up the gradients that reach it and does not tell where they came
from.
"""

ALWAYS, EVERY = 64, 32
"""The running averages of coefficients move in the first `ALWAYS` backward passes, and later less often, from `ALWAYS`
times `EVERY` passes on in every `EVERY`-th one.

They run over hundreds of passes, and where the model is small, moving them takes longer than the rest of the formula.
"""


class Estimate(NamedTuple):
    """Hold the result of `Expectation.estimate`; nothing of it has a graph.

    Attributes:
        value: the mean of f over the K samples.
        gradient: the estimate of the gradient of E_q f in the logits, for every batch element; on a path, in the
            logits that each sample visited, with the samples in front.
        learned_gradient: the gradient of the learned numbers, and the statistics of this step.
        evaluation: the samples, f at them, and what else the estimator needs.
        q: the distribution that the samples came from, with its logits held constant: the visited ones of a path.
        aux: the auxiliary output of f, or None.
    """

    value: Float[Tensor, "*batch"]
    gradient: Float[Tensor, "*logits"]
    learned_gradient: Learned
    evaluation: Evaluation
    q: Distribution
    aux: Any


class Expectation(nn.Module):
    r"""Compute :math:`E_q f` over K samples, with an estimator's gradient in the logits of q.

    The numbers that the estimator learns are parameters of this module: hand `expectation.parameters()` to an optimizer
    together with the model's. Running averages are buffers, which move by themselves in the backward pass while the
    module is in training mode, as those of batch normalization do: in every pass at first, and from 2,048 passes on in
    every thirty-second.

    From one forward and one backward pass of f, `backward` gives

    - to everything that f uses: the ordinary gradient of the mean;
    - to q's logits: the estimator's gradient. If f itself depends on the logits, its ordinary gradient is added; use
      `detach(q)` in f to hold them constant, as an ELBO with log q(x) in f needs it;
    - to the learned numbers: the derivative of the mean square of the estimate. A batch element counts with the
      absolute weight that it has in the loss.

    f may call a compiled model; `torch.compile` leaves the module itself as it is. REBAR and RELAX differentiate f
    twice, which torch does not do through a compiled model. The transforms of `torch.func` do not pass through the
    module; `estimate` gives its gradient explicitly.

    >>> import doublecv as dcv
    >>> expectation = Expectation(dcv.DoubleCV(samples=4, learning="gradient"))
    >>> logits = torch.zeros(3, 5, requires_grad=True)
    >>> expectation(lambda x: x.sum(-1), dcv.Bernoulli(logits=logits)).mean().backward()
    >>> logits.grad.shape, expectation.alpha.grad.shape
    (torch.Size([3, 5]), torch.Size([]))

    Args:
        estimator: any estimator of doublecv. If the sizes of its state come from q, as those of `LearnedSurrogate` and
            `Relax` do, call `init` before making the optimizer; for the others, `init` is optional.
    """

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        check_estimator(estimator)
        self.estimator = estimator
        self._number_names: tuple[str, ...] = ()
        self._average_names: tuple[str, ...] = ()
        self._statistic_names: tuple[str, ...] = ()
        self._initialized = False
        self._passes = 0
        self._watched: tuple[int, list[Tensor]] | None = None
        if not estimator.needs.sized:
            self._register(estimator.init(), torch.get_default_dtype(), None)

    def init(
        self,
        q: Distribution | Sequential | torch.distributions.Distribution,
        *,
        context: Float[Tensor, "*#batch features"] | None = None,
        learned: Learned | None = None,
    ) -> Self:
        """Set the initial state, with sizes from q and the context, and return the module.

        Args:
            q: a distribution like those of the calls to come; its values are not used.
            context: features of each batch element, if the calls to come have any.
            learned: what to start from, such as the result of `optimal_coefficients`; None for the estimator's own
                start.
        """
        if isinstance(q, Sequential):
            check_sequential(self.estimator)
            with torch.no_grad():
                q.check(uniform(None))
            if learned is not None:
                self.estimator.check_learned(learned)
                self._register(learned, torch.get_default_dtype(), None)
            return self
        family = _family(q, self.estimator)
        held_context = _held(context, self.estimator)
        if learned is not None:
            self.estimator.check_learned(learned)
        start = self.estimator.init(family.detach(), held_context) if learned is None else learned
        dtype = torch.promote_types(family.logits.dtype, torch.float32)
        self._register(start, dtype, family.logits.device)
        return self

    def learned(self) -> Learned:
        """Return the learned state by name, as `doublecv.torch.variance` and the estimator take it."""
        self._check_initialized()
        numbers = {name: getattr(self, name) for name in self._number_names}
        return Learned(numbers, self._averages(), dict.fromkeys(self._statistic_names))

    def _averages(self) -> dict[str, Tensor]:
        """Return the running averages by name, without the search of `Module` for an attribute, which takes long."""
        buffers: dict[str, Any] = self._buffers
        return {name: buffers[name] for name in self._average_names}

    # The two nodes speak to each other in the backward pass, which a compiled graph of both would not see.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        f: Function,
        q: Distribution | Sequential | torch.distributions.Distribution,
        *,
        context: Float[Tensor, "*#batch features"] | None = None,
        has_aux: bool = False,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "..."] | None = None,
        pullback: Pullback | None = None,
    ) -> Any:
        """Return the mean of f over K samples, for every batch element.

        Args:
            f: a function from `[K, *batch, *event]` to `[K, *batch]` that treats samples and batch elements one by one.
                It is differentiated in x only if the estimator needs it.
            q: a distribution of doublecv, or `torch.distributions.Bernoulli` or `OneHotCategorical`, or `Independent`
                of one; the last axis of a Bernoulli's logits is that of the variables, as in doublecv. For a `Product`,
                `Layers` or `Autoregressive`, f receives a dictionary, a tuple of layers or sequences.
            context: features of each batch element, for estimators that use them; the others ignore it.
            has_aux: whether f returns a pair of values and auxiliary output. The result is then a pair, too. The
                auxiliary output is differentiable in what f uses, with the samples held constant.
            generator: the source of the noise; torch's global generator if None.
            noise: uniform noise on [0, 1) of shape `estimator.noise_shape(q)`, in place of a generator.
            pullback: if given, the learned numbers minimise the squared norm of `pullback(gradient)`. It is
                differentiated: `lambda g: torch.autograd.grad(logits, parameters, g, create_graph=True)`.
        """
        estimator = self.estimator
        check_function(f, q)
        watched = Watched(f)
        f, q, wide, noise, samples = self._prepare(watched, q, generator, noise, pullback)
        checked = checked_function(f, wide, has_aux, q.logits.dtype)
        learned = self.learned()
        parameters = list(learned.numbers.values())
        learning = any(parameter.requires_grad for parameter in parameters)
        following = self.training and bool(learned.averages)
        if not (torch.is_grad_enabled() and (learning or following or q.logits.requires_grad)):
            values, aux = checked(samples.clone())
            value = combine(estimator, values)
            return (value, aux) if has_aux else value
        numbers = leaves_of(learned.numbers, estimator, wide)
        # Copies, because the averages move in place and another backward pass may come.
        fixed: Tensor | None = None
        averages: dict[str, Tensor] = {}
        statistics: dict[str, Any] = {}
        if isinstance(estimator, LinearEstimator) and learned.averages and not (following and self._is_observing()):
            fixed = estimator.hold(learned.averages).clone()
        else:
            averages = {name: value.detach().clone() for name, value in learned.averages.items()}
            statistics = learned.statistics
        held = Learned(numbers, averages, statistics)
        context = _held(context, estimator)
        side = evaluate_side(checked, wide, noise, samples, estimator, numbers, context, learning)
        known_mean = None if wide.visited else wide.mean
        rule = Rule(estimator, q.with_logits, known_mean, held, fixed, pullback, self._report)
        x, channel = sample(rule, side, q.logits, samples, parameters)
        needed = estimator.needs.gradient
        scheduled = self._passes % CHECK_EVERY == 0
        if needed and (has_aux or scheduled or estimator.needs.bound):
            # x itself is differentiated later, and f may change its argument in place.
            rule.x, argument = x, x.clone()
        else:
            argument = x if needed else samples.clone()
        version = argument._version
        values, aux = checked(argument)
        if needed and watched.kept and rule.x is None and argument._version == version:
            rule.x = x
        rule.check = scheduled or (watched.kept and rule.x is not None)
        if needed and rule.check:
            check_gradient_exists(values, x, estimator)
        value = mean(rule, values, channel)
        return (value, auxiliary(rule, aux)) if has_aux else value

    def estimate(
        self,
        f: Function,
        q: Distribution | Sequential | torch.distributions.Distribution,
        *,
        context: Float[Tensor, "*#batch features"] | None = None,
        has_aux: bool = False,
        generator: torch.Generator | None = None,
        noise: Float[Tensor, "..."] | None = None,
        pullback: Pullback | None = None,
    ) -> Estimate:
        """Return the value, the gradient in the logits and the gradient of the learned state, explicitly.

        The arguments are those of the call, and so is the learned state's gradient, for a loss that is the mean over
        the batch. Of f, only the derivative in x is computed, and the state does not move, so this is the form for
        logits that are themselves the parameters and for diagnostics.
        """
        estimator = self.estimator
        check_function(f, q)
        f, q, wide, noise, x = self._prepare(f, q, generator, noise, pullback)
        checked = checked_function(f, wide, has_aux, q.logits.dtype)
        df = None
        if estimator.needs.gradient:
            values, df, aux = evaluate(checked, x, estimator)
        else:
            values, aux = checked(x.clone())
        values = values.detach().to(torch.promote_types(values.dtype, wide.logits.dtype))
        learned = self.learned()
        wanted = {name: value.detach().requires_grad_() for name, value in learned.numbers.items()}
        numbers = leaves_of(wanted, estimator, wide)
        context = _held(context, estimator)
        side = evaluate_side(checked, wide, noise, x, estimator, numbers, context, bool(numbers))
        size = max(1, prod(q.batch_shape))
        weight = torch.full(q.batch_shape, 1 / size, dtype=wide.logits.dtype, device=wide.logits.device)
        gradient, of_numbers, statistics = gradients(
            estimator,
            wide,
            side.evaluation(x, values, df),
            learned._replace(numbers=numbers),
            weight,
            context,
            pullback,
        )
        averages = {name: torch.zeros_like(value) for name, value in learned.averages.items()}
        held = side._replace(**{name: _detached(getattr(side, name)) for name in ("control", "dcontrol")})
        return Estimate(
            combine(estimator, values),
            gradient.to(q.logits.dtype),
            Learned(total(of_numbers, learned.numbers, weight), averages, statistics),
            held.evaluation(x, values, df),
            wide,
            aux,
        )

    def extra_repr(self) -> str:
        """Return the estimator."""
        return repr(self.estimator)

    def _prepare(self, f: Any, q: Any, generator: torch.Generator | None, noise: Tensor | None, pullback: Any) -> Drawn:
        """Check the arguments and draw the samples."""
        _check_no_transform()
        check_pullback(self.estimator, pullback)
        self._check_initialized()
        if isinstance(q, Sequential):
            check_sequential(self.estimator)
            if not isinstance(q.like, Tensor | None):
                raise TypeError(
                    f"logits of q must be a torch tensor, got {type(q.like).__name__}; use doublecv.jax for JAX arrays"
                )
            if noise is not None:
                raise ValueError(
                    "noise cannot be given for a distribution that is drawn in several steps; take generator"
                )
            if self._passes == 0:
                with torch.no_grad():
                    q.check(uniform(None))
            return draw_path(f, q, self.estimator, generator)
        family = _family(q, self.estimator)
        wide = family.detach().widen().remember()
        noise = _checked_noise(wide, self.estimator, generator, noise)
        return Drawn(f, family, wide, noise, _draw(wide, noise, self.estimator))

    def _is_observing(self) -> bool:
        """Return whether the running averages move in the next backward pass."""
        return self._passes % max(1, min(EVERY, self._passes // ALWAYS)) == 0

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the number of backward passes with the averages, so that a resumed run is the same run."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._average_names:
            destination[f"{prefix}passes"] = torch.tensor(self._passes)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load the state; a state that holds only parameters and averages is also taken."""
        self._passes = int(state_dict.pop(f"{prefix}passes", self._passes))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _register(self, start: Learned, dtype: torch.dtype, device: torch.device | None) -> None:
        for name in (*self._number_names, *self._average_names):
            delattr(self, name)
        for name, value in start.numbers.items():
            self.register_parameter(name, nn.Parameter(_copy(value, dtype, device)))
        for name, value in start.averages.items():
            # Averages of a product of two gradients need the range of at least 32 bits.
            self.register_buffer(name, _copy(value, dtype, device))
        self._number_names, self._average_names = tuple(start.numbers), tuple(start.averages)
        self._statistic_names = tuple(start.statistics)
        self._initialized = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the module as usual, but keep running averages in at least 32 bits."""
        kept = {name: getattr(self, name) for name in self._average_names}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in kept.items():
            after = getattr(self, name)
            if torch.finfo(after.dtype).bits < 32:
                setattr(self, name, before.to(after.device))
        return self

    def _check_initialized(self) -> None:
        if not self._initialized:
            raise RuntimeError(
                f"the sizes of the state of {type(self.estimator).__name__} come from q; call "
                f"expectation.init(q, context=...) once, before making the optimizer"
            )

    def _report(self, statistics: Mapping[str, Any]) -> None:
        """Move the running averages after a backward pass, and watch whether the parameters move."""
        self._passes += 1
        if self.training and statistics:
            averages = self._averages()
            some = next(iter(averages.values()))
            if some.device.type == "cpu":
                # A hundred operations on small arrays, which NumPy starts several times faster than PyTorch.
                views = {name: value.numpy() for name, value in averages.items()}
                dtype = views[self._average_names[0]].dtype
                moved = self.estimator.advance(
                    views, {name: np.asarray(value, dtype=dtype) for name, value in statistics.items()}
                )
                for name, value in moved.items():
                    views[name][...] = value
            else:
                cast = {name: value.to(some.dtype) for name, value in statistics.items()}
                for name, value in self.estimator.advance(averages, cast).items():
                    averages[name].copy_(value)
        self._watch()

    def _watch(self) -> None:
        parameters = [getattr(self, name) for name in self._number_names]
        if not any(parameter.requires_grad for parameter in parameters):
            return
        if self._watched is None:
            self._watched = 0, [parameter.detach().clone() for parameter in parameters]
        count, before = self._watched
        if count == PATIENCE and all(map(torch.equal, parameters, before)):
            warnings.warn(
                f"the parameters of Expectation({type(self.estimator).__name__}) received gradients in {PATIENCE} "
                f"backward passes and never changed; hand expectation.parameters() to the optimizer",
                stacklevel=2,
            )
        if count <= PATIENCE:
            self._watched = count + 1, before


def _draw(q: Distribution, noise: Tensor, estimator: Estimator) -> Float[Tensor, "K *logits"]:
    with torch.no_grad(), formulas(q):
        samples: Tensor = estimator.draw(q, noise)
        return samples


def _copy(value: Any, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Return a tensor that shares no memory with the learned state that it starts from."""
    return torch.as_tensor(value).detach().to(device=device, dtype=dtype, copy=True)


def _held(context: Any, estimator: Estimator) -> Tensor | None:
    """Return the context, held constant, with 0 where it is not finite; None if the estimator does not use it."""
    if context is None:
        return None
    if isinstance(context, Tensor):
        if not estimator.needs.context:
            return None
        # Any context is valid. NaN in padding that a mask removes would otherwise stay in the learned numbers.
        context = context.detach()
        return torch.where(context.isfinite(), context, 0)
    raise TypeError(
        f"context must be a torch tensor [*batch, features], got {type(context).__name__}; convert it with "
        f"torch.as_tensor"
    )


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _family(q: Any, estimator: Estimator) -> Distribution:
    """Return the distribution, or raise where it is none that the estimator supports, or not of torch."""
    family: Distribution = as_family(q)
    if isinstance(family, Distribution) and not isinstance(family.logits, Tensor):
        raise TypeError(
            f"logits of q must be a torch tensor, got {type(family.logits).__name__}; convert them first, for example "
            f"with torch.as_tensor(logits), or use doublecv.jax"
        )
    estimator.check_family(family)
    return family


def _check_no_transform() -> None:
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    if peek is not None and peek() is not None:
        raise RuntimeError(
            "Expectation does not pass through the transforms of torch.func (grad, vmap, jvp, ...); call backward, or "
            "take the explicit gradient from Expectation.estimate outside of the transform"
        )


def _checked_noise(
    q: Distribution, estimator: Estimator, generator: torch.Generator | None, noise: Tensor | None
) -> Float[Tensor, "..."]:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, such as torch.Generator().manual_seed(0), got "
            f"{type(generator).__name__}"
        )
    if noise is None:
        logits = q.logits
        return torch.rand(estimator.noise_shape(q), dtype=logits.dtype, device=logits.device, generator=generator)
    if generator is not None:
        raise ValueError("noise and generator were both given, but noise takes the generator's place; leave one out")
    require_floating("noise", noise)
    return noise


def fold(f: Callable[..., Any], *data: Any) -> Callable[[Any], Any]:
    """Turn a model written for `[batch, ...]` into an f for `[K, batch, ...]`.

    K is folded into the batch axis and the data is repeated K times, so that the model sees one batch of K times as
    many examples.

    >>> def negative_log_likelihood(z, y):  # one number per example
    ...     return ((y - z) ** 2).sum(-1)
    >>> f = fold(negative_log_likelihood, torch.ones(8, 3))
    >>> f(torch.zeros(4, 8, 3)).shape
    torch.Size([4, 8])

    Args:
        f: a function of x with shape `[K * batch, *event]`, and of the data, that returns one number per example, or a
            pair of these and auxiliary output, which is passed through.
        data: tensors, or nested containers of tensors, whose first axis is the batch.
    """
    tree_map, leaves = torch.utils._pytree.tree_map, torch.utils._pytree.tree_leaves

    def folded(x: Any) -> Any:
        samples, batch = leaves(x)[0].shape[:2]

        def merge(leaf: Tensor) -> Tensor:
            return leaf.reshape(samples * batch, *leaf.shape[2:])

        def repeat(leaf: Tensor) -> Tensor:
            if not isinstance(leaf, Tensor):
                raise TypeError(f"data must be torch tensors, got {type(leaf).__name__}; close over anything else in f")
            if leaf.ndim == 0 or leaf.shape[0] != batch:
                raise ValueError(f"data must have the batch axis {batch} in front, got shape {tuple(leaf.shape)}")
            return merge(leaf.expand(samples, *leaf.shape))

        returned = f(tree_map(merge, x), *tree_map(repeat, data))
        values, *aux = returned if isinstance(returned, tuple) else (returned,)
        if tuple(values.shape[:1]) != (samples * batch,):
            raise ValueError(
                f"f must return one number per example, {samples * batch} of them, got shape {tuple(values.shape)}"
            )
        unfolded = values.reshape(samples, batch, *values.shape[1:])
        return (unfolded, *aux) if aux else unfolded

    return folded
