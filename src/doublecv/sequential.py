r"""Distributions that are drawn in several blocks: `Product`, `Layers` and `Autoregressive`.

They describe how to draw; the front-ends draw K samples from them and make one differentiable pass that gives the
logits that each sample visited (`doublecv.paths`). f receives the samples in the structure of the description: a
dictionary, a tuple or an array, always with the samples in front.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, Shape, detach, is_traced, namespace, repeat_without_gradient
from doublecv.distributions import Bernoulli, Categorical, Distribution
from doublecv.paths import Block, Blocks, Mixed, Path

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MOST_POSITIONS_CHECKED = 1024
"""The number of positions, evenly spread, at which the causality of an autoregressive model is checked."""

POSITIONS_AT_ONCE = 32
"""The number of positions that one call of `logits_of` checks."""


class Uniform(Protocol):
    """Draw noise that is uniform on [0, 1), of the type and device of `like`."""

    def __call__(self, shape: Shape, like: Array | None) -> Array:
        """Return an array of the shape."""


class Visit(NamedTuple):
    """Hold K samples and the logits that they visited.

    Attributes:
        q: the distribution, with differentiable logits.
        x: the samples in the flat layout of q.
        structure: a function from samples in the flat layout to samples as f receives them.
    """

    q: Blocks
    x: Float[Array, "K *batch coordinates"]
    structure: Callable[[Array], Any]


class Sequential(ABC):
    """Describe a distribution that is drawn in several blocks; the base of `Product`, `Layers`, `Autoregressive`.

    Attributes:
        batch_shape: the axes of independent problems.
        like: an array of the type and device of the samples; None for those of new arrays.
    """

    batch_shape: Shape
    like: Array | None

    @abstractmethod
    def visit(self, samples: int, uniform: Uniform) -> Visit:
        """Draw K samples and compute the logits that each of them visited."""

    @abstractmethod
    def log_prob(self, x: Any) -> Float[Array, "*leading"]:
        r"""Return :math:`\log q(x)` of samples as f receives them."""

    @abstractmethod
    def detach(self) -> Sequential:
        """Return the same distribution with its logits held constant under differentiation, for use in f."""

    def check(self, uniform: Uniform) -> None:  # noqa: B027, because most descriptions cannot be wrong
        """Raise if the description contradicts itself; the front-ends call this once."""


@final
class Product(Sequential):
    """Represent independent variables of several kinds, by name; samples are dictionaries.

    The distributions have the same batch axes, and may have different numbers of variables and categories.

    >>> import numpy as np
    >>> gates, choice = Bernoulli(logits=np.zeros((7, 4))), Categorical(logits=np.zeros((7, 1, 3)))
    >>> Product(gates=gates, choice=choice).batch_shape
    (7,)
    """

    def __init__(self, **distributions: Bernoulli | Categorical) -> None:
        if not distributions:
            raise TypeError("Product needs at least one distribution, for example Product(gates=Bernoulli(...))")
        for name, q in distributions.items():
            if not isinstance(q, Bernoulli | Categorical):
                raise TypeError(f"{name} must be a Bernoulli or a Categorical, got {type(q).__name__}")
        shapes = {name: q.batch_shape for name, q in distributions.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"the distributions of a Product must have the same batch axes, got {shapes}")
        self.distributions = distributions
        self.like = next(iter(distributions.values())).logits
        self.batch_shape = next(iter(shapes.values()))

    def visit(self, samples: int, uniform: Uniform) -> Visit:
        """Draw K samples; all of them visit the same logits."""
        logits, blocks = _flatten(self)
        q = Mixed(logits, blocks)
        x = q.detach().widen().sample(uniform((samples, *q.noise_shape), logits))
        return Visit(q, x, _structure_of(self))

    def log_prob(self, x: dict[str, Array]) -> Float[Array, "*leading"]:
        r"""Return the sum of :math:`\log q(x)` over the distributions."""
        return _total([q.log_prob(x[name]) for name, q in self.distributions.items()])

    def entropy(self) -> Float[Array, "*batch"]:
        r"""Return the sum of the entropies."""
        return _total([q.entropy() for q in self.distributions.values()])

    def kl(self, other: Product) -> Float[Array, "*batch"]:
        r"""Return the sum of the divergences from the distributions of `other` with the same names."""
        if not isinstance(other, Product) or other.distributions.keys() != self.distributions.keys():
            given = sorted(other.distributions) if isinstance(other, Product) else type(other).__name__
            raise TypeError(f"other must be a Product with the names {sorted(self.distributions)}, got {given}")
        return _total([q.kl(other.distributions[name]) for name, q in self.distributions.items()])

    def detach(self) -> Product:
        """Return the same distribution with its logits held constant under differentiation."""
        return Product(**{name: q.detach() for name, q in self.distributions.items()})


Layer = Bernoulli | Categorical | Product


@final
class Layers(Sequential):
    r"""Represent stochastic layers, each of which depends on those drawn before; samples are tuples of layers.

    .. math:: q(x) = q(x_1) \, q(x_2 \mid x_1) \cdots q(x_L \mid x_1, \dots, x_{L-1})

    One path is drawn per sample, so that K evaluations of f serve all layers.

    Args:
        first: the distribution of the first layer.
        conditionals: functions from the layers drawn so far, each with the samples in front, to the distribution of the
            next layer, whose logits have the samples in front, too: `lambda x1: Bernoulli(logits=x1 @ weights)`.
    """

    def __init__(self, first: Layer, *conditionals: Callable[..., Layer]) -> None:
        if not isinstance(first, Bernoulli | Categorical | Product):
            raise TypeError(f"first must be a Bernoulli, a Categorical or a Product, got {type(first).__name__}")
        for index, conditional in enumerate(conditionals):
            if not callable(conditional):
                raise TypeError(
                    f"conditionals must be functions from the earlier layers to a distribution, got "
                    f"{type(conditional).__name__} for layer {index + 2}"
                )
        self.first, self.conditionals = first, conditionals
        self.like = first.like if isinstance(first, Product) else first.logits
        self.batch_shape = first.batch_shape

    def visit(self, samples: int, uniform: Uniform) -> Visit:
        """Draw K paths, layer by layer."""
        drawn: list[Any] = []
        logits: list[Array] = []
        blocks: list[Block] = []
        flat: list[Array] = []
        structures: list[tuple[int, Callable[[Array], Any]]] = []
        for index in range(1 + len(self.conditionals)):
            layer = self._conditional(index, drawn, samples) if index else self.first
            of_layer, blocks_of_layer = _flatten(layer)
            size = of_layer.shape[-1]
            of_layer = namespace(of_layer).broadcast_to(of_layer, (samples, *self.batch_shape, size))
            q = Path(of_layer, blocks_of_layer).detach().widen()
            noise = uniform((samples, *q.noise_shape), of_layer)
            x = namespace(noise).astype(q.sample(noise), of_layer.dtype)
            structure = _structure_of(layer)
            drawn.append(structure(x))
            logits.append(of_layer)
            blocks.extend(blocks_of_layer)
            flat.append(x)
            structures.append((size, structure))

        def all_layers(x: Array) -> tuple[Any, ...]:
            parts = _split(x, [Block(size) for size, _ in structures])
            return tuple(structure(part) for (_, structure), part in zip(structures, parts, strict=True))

        xp = namespace(flat[0])
        return Visit(Path(xp.concat(logits, axis=-1), tuple(blocks)), xp.concat(flat, axis=-1), all_layers)

    def log_prob(self, x: tuple[Any, ...]) -> Float[Array, "*leading"]:
        r"""Return :math:`\log q(x_1) + \log q(x_2 \mid x_1) + \dots`."""
        result = self.first.log_prob(x[0])
        for index, conditional in enumerate(self.conditionals, start=1):
            result = result + conditional(*x[:index]).log_prob(x[index])
        return result

    def detach(self) -> Layers:
        """Return the same distribution with its logits held constant under differentiation."""

        def held(conditional: Callable[..., Layer]) -> Callable[..., Layer]:
            return lambda *x: conditional(*x).detach()

        return Layers(self.first.detach(), *map(held, self.conditionals))

    def _conditional(self, index: int, drawn: list[Any], samples: int) -> Layer:
        layer = self.conditionals[index - 1](*drawn)
        if not isinstance(layer, Bernoulli | Categorical | Product):
            raise TypeError(
                f"the function of layer {index + 1} must return a Bernoulli, a Categorical or a Product, got "
                f"{type(layer).__name__}"
            )
        wanted = (samples, *self.batch_shape)
        if layer.batch_shape != wanted:
            raise ValueError(
                f"the distribution of layer {index + 1} must have the batch axes {wanted}, the samples in front, got "
                f"{layer.batch_shape}; compute its logits from the earlier layers, which have these axes"
            )
        return layer


@final
class Autoregressive(Sequential):
    r"""Represent a sequence of bits or categories, each of which depends on those before it.

    .. math:: q(x) = \prod_t q(x_t \mid x_{<t})

    Args:
        logits_of: a causal function from sequences to the logits of all positions at once: those of position t depend
            only on the positions before t. It takes `[K, *batch, length]` for bits and, one-hot,
            `[K, *batch, length, categories]` for categories, and returns the same shape. Positions that are not drawn
            yet are 0.
        length: the number of positions.
        categories: the number of categories; None for bits.
        batch_shape: the axes of independent problems, as `logits_of` expects them.
        sampler: a function from uniform noise `[K, *batch, length]` to sequences, for models with a faster way to draw
            than `length` calls of `logits_of`.
        like: an array whose type and device the sequences get; by default those of new arrays.
    """

    def __init__(
        self,
        logits_of: Callable[[Array], Array],
        length: int,
        categories: int | None = None,
        *,
        batch_shape: Shape = (),
        sampler: Callable[[Array], Array] | None = None,
        like: Array | None = None,
    ) -> None:
        if not callable(logits_of):
            raise TypeError(f"logits_of must be a function from sequences to logits, got {type(logits_of).__name__}")
        for name, number in (("length", length), ("categories", categories)):
            if (number is not None or name == "length") and (not isinstance(number, int) or number < 1):
                raise ValueError(f"{name} must be a positive integer, got {number!r}")
        self.logits_of, self.length, self.categories = logits_of, length, categories
        self.batch_shape, self.sampler, self.like = tuple(batch_shape), sampler, like

    @property
    def event_shape(self) -> Shape:
        """Return the axes of one sequence."""
        return (self.length,) if self.categories is None else (self.length, self.categories)

    def visit(self, samples: int, uniform: Uniform) -> Visit:
        """Draw K sequences step by step, and compute their logits in one differentiable pass."""
        noise = uniform((samples, *self.batch_shape, self.length), self.like)
        xp = namespace(noise)
        shape = (samples, *self.batch_shape, *self.event_shape)
        if self.sampler is None:
            x = self._draw(noise)
        else:
            x = detach(xp.astype(self.sampler(noise), noise.dtype))
            if tuple(x.shape) != shape:
                raise ValueError(f"sampler must return shape {shape}, got shape {tuple(x.shape)}")
        flat = (*shape[: 1 + len(self.batch_shape)], -1)
        logits = xp.reshape(self._logits(x), flat)
        blocks = (Block(1, self.categories),) * self.length

        def sequences(x: Array) -> Array:
            return xp.reshape(x, (*tuple(x.shape)[:-1], *self.event_shape))

        return Visit(Path(logits, blocks), xp.reshape(x, flat), sequences)

    def log_prob(self, x: Float[Array, "..."]) -> Float[Array, "*leading"]:
        r"""Return :math:`\sum_t \log q(x_t \mid x_{<t})`."""
        return self._family(self._logits(x)).log_prob(x)

    def detach(self) -> Autoregressive:
        """Return the same distribution with its logits held constant under differentiation."""
        return Autoregressive(
            lambda x: detach(self.logits_of(x)),
            self.length,
            self.categories,
            batch_shape=self.batch_shape,
            sampler=self.sampler,
            like=self.like,
        )

    def check(self, uniform: Uniform) -> None:
        """Raise if the logits of some position depend on that position or a later one.

        Copies of a random sequence differ from position t on, each copy with another t, and the logits up to t must be
        the same. It takes fewer calls of `logits_of` than drawing a sequence. Nothing is checked inside a JAX
        transformation, where values are not known.
        """
        positions = np.unique(np.linspace(0, self.length - 1, MOST_POSITIONS_CHECKED).round().astype(int))
        noise = uniform((2, *self.batch_shape, self.length), self.like)
        xp = namespace(noise)
        family = self._family(
            xp.zeros((1, *self.batch_shape, *self.event_shape), dtype=noise.dtype, device=device(noise))
        )
        # The second sequence differs from the first at every position that has more than one value.
        other = (noise[:1] + 0.5) % 1 if self.categories is None else (noise[:1] + 1 / self.categories) % 1
        base, changed = family.sample(noise[:1]), family.sample(other)
        for start in range(0, len(positions), POSITIONS_AT_ONCE):
            self._check_positions(positions[start : start + POSITIONS_AT_ONCE], base, changed)

    def _check_positions(
        self, positions: Int[np.ndarray, "checked"], base: Float[Array, "1 *point"], changed: Float[Array, "1 *point"]
    ) -> None:
        """Raise if the logits up to one of the positions are not the same for sequences that differ from there on."""
        xp, place = namespace(base), device(base)
        late = xp.asarray(np.arange(self.length) >= positions[:, None], device=place)
        late = xp.reshape(late, (len(positions), *(1,) * len(self.batch_shape), self.length))
        late = late if self.categories is None else late[..., None]
        logits = detach(self._logits(xp.concat([base, xp.where(late, changed, base)], axis=0)))
        if is_traced(logits):
            return
        values = np.asarray(logits if not hasattr(logits, "cpu") else logits.cpu(), dtype=float)
        axes = tuple(range(1, 1 + len(self.batch_shape))) + ((values.ndim - 1,) if self.categories else ())
        difference = np.abs(values[1:] - values[:1])
        scale = 1e-4 * max(1.0, float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0)))
        leaks = (difference > scale).any(axis=axes)
        for index, t in enumerate(positions):
            if (reading := np.flatnonzero(leaks[index, : t + 1])).size:
                raise ValueError(
                    f"logits_of is not causal: its logits at position {reading[0]} change with the values at position "
                    f"{t} or later; those of position t may depend on the positions before t only (shift its input by "
                    f"one position, or mask it)"
                )

    def _draw(self, noise: Float[Array, "K *batch length"]) -> Float[Array, "K *points"]:
        xp = namespace(noise)
        position = xp.arange(self.length, device=device(noise))

        def step(t: Any, x: Array) -> Array:
            drawn = self._family(self._logits(x)).detach().widen().sample(noise)
            now = position == t if self.categories is None else (position == t)[:, None]
            return xp.where(now, xp.astype(drawn, x.dtype), x)

        start = xp.zeros((*noise.shape[:-1], *self.event_shape), dtype=noise.dtype, device=device(noise))
        return repeat_without_gradient(step, self.length, start)

    def _logits(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        logits = self.logits_of(x)
        if not hasattr(logits, "shape") or tuple(logits.shape) != tuple(x.shape):
            given = tuple(logits.shape) if hasattr(logits, "shape") else type(logits).__name__
            raise ValueError(
                f"logits_of must return the logits of all positions, with the shape of its argument, {tuple(x.shape)}, "
                f"got {given}"
            )
        return logits

    def _family(self, logits: Array) -> Bernoulli | Categorical:
        return Bernoulli(logits=logits) if self.categories is None else Categorical(logits=logits)


def _flatten(layer: Layer) -> tuple[Float[Array, "*batch coordinates"], tuple[Block, ...]]:
    """Return the logits of a layer in the flat layout, and its blocks."""
    parts: list[Distribution] = list(layer.distributions.values()) if isinstance(layer, Product) else [layer]
    xp = namespace(parts[0].logits)
    flat = [xp.reshape(q.logits, (*q.batch_shape, -1)) for q in parts]
    return xp.concat(flat, axis=-1), tuple(Block(*q.event_shape) for q in parts)


def _structure_of(layer: Layer) -> Callable[[Array], Any]:
    """Return the function from samples of a layer in the flat layout to samples as f receives them."""
    if isinstance(layer, Product):
        names = list(layer.distributions)
        blocks = [Block(*q.event_shape) for q in layer.distributions.values()]
        return lambda x: dict(zip(names, _split(x, blocks), strict=True))
    block = Block(*layer.event_shape)
    return lambda x: _split(x, [block])[0]


def _split(x: Float[Array, "*leading coordinates"], blocks: list[Block]) -> list[Array]:
    xp, leading, parts, start = namespace(x), tuple(x.shape)[:-1], [], 0
    for block in blocks:
        parts.append(xp.reshape(x[..., start : start + block.size], (*leading, *block.event_shape)))
        start += block.size
    return parts


def _total(terms: list[Array]) -> Array:
    return sum(terms[1:], start=terms[0])
