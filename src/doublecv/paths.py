r"""Distributions over blocks of bits and categories: independent blocks, and paths of blocks drawn one after another.

All variables lie in one flat event axis, block after block: a bit has one coordinate, a variable with C categories has
C. A block is a set of variables that are independent of each other given the earlier blocks.

On a path the logits of block t depend on what was drawn before, so each sample k visits logits of its own. With the
mean :math:`\mu_{kt}`, the score :math:`s_{kt} = x_{kt} - \mu_{kt}` and the covariance :math:`M_{kt}` at the visited
logits, the scores are martingale differences, :math:`E[s_{kt} \mid x_{k,<t}] = 0`, which is all that the control
variates need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self, final

import numpy as np
from array_api_compat import device

from doublecv.arrays import Array, Shape, register_where_jax_is_in_use, require_floating
from doublecv.distributions import Bernoulli, Categorical, Distribution

if TYPE_CHECKING:
    from jaxtyping import Float


class Block(NamedTuple):
    """Describe variables that are independent of each other given the earlier blocks.

    Attributes:
        variables: the number of variables.
        categories: the number of categories of each variable; None for bits.
    """

    variables: int
    categories: int | None = None

    @property
    def size(self) -> int:
        """Return the number of coordinates."""
        return self.variables * (self.categories or 1)

    @property
    def event_shape(self) -> Shape:
        """Return the shape of the block outside the flat axis."""
        return (self.variables,) if self.categories is None else (self.variables, self.categories)


class Blocks(Distribution):
    """Represent blocks of bits and categories in one flat event axis; the base of `Mixed` and `Path`.

    Args:
        logits: the logits in the flat layout.
        blocks: the blocks, in their order.
    """

    event_axes: ClassVar[int] = 1
    layout: ClassVar[str] = "[*batch, coordinates]"
    blocks: tuple[Block, ...]

    def __init__(self, logits: Float[Array, "*logits"], blocks: tuple[Block, ...]) -> None:
        require_floating("logits", logits)
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "blocks", tuple(blocks))
        size = sum(block.size for block in self.blocks)
        if logits.ndim < self.event_axes + self.visited or logits.shape[-1] != size or not size:
            raise ValueError(
                f"logits of {type(self).__name__} must have shape {self.layout} with {size} coordinates, got shape "
                f"{tuple(logits.shape)}"
            )
        register_where_jax_is_in_use(self, "logits", static=("blocks",))

    def with_logits(self, logits: Float[Array, "*logits"]) -> Self:
        """Return a distribution of the same blocks with other logits."""
        return type(self)(logits, self.blocks)

    @property
    def noise_shape(self) -> Shape:
        """Return the shape of the uniform noise that one sample takes: one number per variable."""
        return (*self.batch_shape, sum(block.variables for block in self.blocks))

    @property
    def mean(self) -> Float[Array, "*logits"]:
        r"""Return :math:`\mu`, the conditional mean of each block."""
        return self._join([family.mean for family in self._families])

    def covariance_product(self, v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        r"""Return :math:`M v`, with the conditional covariance of each block."""
        return self.map_parts(lambda family, part: family.covariance_product(part), v)

    def score_square_moment(self, v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        r"""Return :math:`E[s_t (v_t^T s_t)^2]` for each block t."""
        return self.map_parts(lambda family, part: family.score_square_moment(part), v)

    def log_prob(self, x: Float[Array, "*points"]) -> Float[Array, "*leading"]:
        r"""Return :math:`\sum_t \log q(x_t)`, each block with its own logits."""
        self._check_trailing("x", x, tuple(self.logits.shape))
        return sum(family.log_prob(part) for family, part in zip(self._families, self.split(x), strict=True))

    def sample(self, noise: Float[Array, "*leading variables"]) -> Float[Array, "*points"]:
        """Turn noise that is uniform on [0, 1), one number per variable, into samples at these logits."""
        drawn, start = [], 0
        for family in self._families:
            stop = start + family.event_shape[0]
            drawn.append(family.sample(noise[..., start:stop]))
            start = stop
        return self._join(drawn)

    def sum_of_earlier(self, v: Float[Array, "*points"]) -> Float[Array, "*points"]:
        """Return, for every coordinate, the sum of v over the coordinates of all earlier blocks."""
        xp = self.xp
        total = xp.cumulative_sum(v, axis=-1)
        before = xp.concat([xp.zeros_like(total[..., :1]), total[..., :-1]], axis=-1)
        return xp.take(before, xp.asarray(_first_coordinates(self.blocks), device=device(v)), axis=-1)

    @final
    def map_parts(
        self, function: Callable[[Bernoulli | Categorical, Array], Array], v: Float[Array, "*points"]
    ) -> Float[Array, "*points"]:
        """Apply a function of a family and its part of v to every run of blocks of one kind."""
        parts = zip(self._families, self.split(v), strict=True)
        return self._join([function(family, part) for family, part in parts])

    @final
    def split(self, v: Float[Array, "*points"]) -> list[Float[Array, "..."]]:
        """Split the flat axis into runs of blocks of one kind, `[..., D]` for bits and `[..., D, C]` for categories."""
        leading = tuple(v.shape)[:-1]
        return [
            self.xp.reshape(v[..., run.start : run.start + run.block.size], (*leading, *run.block.event_shape))
            for run in _runs(self.blocks)
        ]

    @property
    def _families(self) -> list[Bernoulli | Categorical]:
        runs = zip(_runs(self.blocks), self.split(self.logits), strict=True)
        return [(Bernoulli if run.block.categories is None else Categorical)(logits=part) for run, part in runs]

    def _join(self, parts: list[Float[Array, "..."]]) -> Float[Array, "*points"]:
        flat = [
            self.xp.reshape(part, (*tuple(part.shape)[: part.ndim - len(run.block.event_shape)], run.block.size))
            for run, part in zip(_runs(self.blocks), parts, strict=True)
        ]
        return flat[0] if len(flat) == 1 else self.xp.concat(flat, axis=-1)

    @staticmethod
    def _logits_of_probs(probs: Array) -> Array:
        raise TypeError("blocks are made from logits")

    def variable_values(self) -> NoReturn:
        """Raise: the variables of different blocks have different values."""
        raise TypeError(f"the variables of a {type(self).__name__} have no common values")

    def variable_probabilities(self) -> NoReturn:
        """Raise: the variables of different blocks have different values."""
        raise TypeError(f"the variables of a {type(self).__name__} have no common values")


@final
class Mixed(Blocks):
    """Represent independent blocks of bits and categories: all samples visit the same logits."""

    def entropy(self) -> Float[Array, "*batch"]:
        r"""Return :math:`-E[\log q(x)]`, summed over the blocks."""
        return sum(family.entropy() for family in self._families)

    def kl(self, other: Distribution) -> Float[Array, "*batch"]:
        r"""Return :math:`E[\log q(x) - \log p(x)]` with p = `other`, summed over the blocks."""
        self._check_same_family(other)
        assert isinstance(other, Mixed)
        return sum(family.kl(of_other) for family, of_other in zip(self._families, other._families, strict=True))


@final
class Path(Blocks):
    """Represent K paths: the logits that each sample visited, with the samples in front."""

    layout: ClassVar[str] = "[K, *batch, coordinates]"
    visited: ClassVar[bool] = True

    @property
    def batch_shape(self) -> Shape:
        """Return the axes of independent problems, behind that of the samples."""
        return tuple(self.logits.shape[1:-1])

    def entropy(self) -> NoReturn:
        """Raise: the entropy of a path is an expectation over the earlier blocks."""
        raise TypeError("the entropy of a path has no closed form; take the mean of -q.log_prob(x) over the samples")

    def visited_entropy(self) -> Float[Array, "*batch"]:
        r"""Return the mean over the samples of the entropy at the visited logits, which estimates that of the path."""
        return self.xp.mean(sum(family.entropy() for family in self._families), axis=0)

    def kl(self, other: Distribution) -> NoReturn:
        """Raise: the divergence of a path is an expectation over the earlier blocks."""
        raise TypeError(
            "the divergence of a path has no closed form; take the mean of q.log_prob(x) - p.log_prob(x) over samples"
        )


class _Run(NamedTuple):
    """Describe neighbouring blocks of one kind, as one."""

    start: int
    block: Block


@cache
def _runs(blocks: tuple[Block, ...]) -> tuple[_Run, ...]:
    """Merge neighbouring blocks of the same kind, for which one operation serves."""
    runs: list[_Run] = []
    for block in blocks:
        if runs and runs[-1].block.categories == block.categories:
            start, last = runs[-1]
            runs[-1] = _Run(start, Block(last.variables + block.variables, block.categories))
        else:
            start = runs[-1].start + runs[-1].block.size if runs else 0
            runs.append(_Run(start, block))
    return tuple(runs)


@cache
def _first_coordinates(blocks: tuple[Block, ...]) -> Any:
    """Return, for every coordinate, the first coordinate of its block."""
    sizes = [block.size for block in blocks]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.repeat(starts, sizes)
