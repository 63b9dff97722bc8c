"""The program of the page "Get started" with any registered estimator put in by one word ends as low as with RLOO."""

import re
from pathlib import Path
from statistics import mean, stdev

import jax
import jax.numpy as jnp
import pytest

import doublecv as dcv

PAGE = (Path(__file__).parent.parent / "docs" / "get-started.md").read_text()
SEEDS = range(5)
LAST = 50
"""The number of steps at the end whose mean loss counts."""

MORE_VARIANCE = dict.fromkeys(("muprop", "disarm", "double-cv-antithetic", "double-cv-mean-antithetic"), 0.015)
"""The share of RLOO's loss by which estimators may end above it that have more variance at K = 4 by construction.

The baseline of MuProp does not use the other samples, and antithetic pairs make two estimates of two samples each.
"""

NAMES = [name for name in dcv.names(dcv.Bernoulli) if name not in ("rloo", "r-star", "reinforce")]
"""R* would enumerate 2^16 points in every step. REINFORCE has no baseline, and so more variance than RLOO."""


def program(framework, name):
    """Return the first program of the page for a framework, with another estimator."""
    code = re.search(rf":sync: {framework}\n\n```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    assert code.count("dcv.QuadraticDoubleCV(samples=4)") == 1
    return code.replace("dcv.QuadraticDoubleCV(samples=4)", f"dcv.make({name!r}, samples=4)")


def losses_in_torch(name):
    """Return the loss at the end for every seed."""
    ends = []
    for seed in SEEDS:
        variables = {}
        exec(program("torch", name).replace("torch.manual_seed(0)", f"torch.manual_seed({seed})"), variables)
        ends.append(mean(variables["values"][-LAST:]))
    return ends


def losses_in_jax(name):
    """Return the loss at the end for every seed; the page's step runs for all seeds as one compiled program."""
    definitions, start, loop = re.split(r"(?=^normal = |^for key in )", program("jax", name), flags=re.MULTILINE)
    assert loop.startswith("for key in jax.random.split(jax.random.key(2), 300):\n")
    variables, starts = {}, []
    exec(definitions, variables)
    for seed in SEEDS:
        exec(re.sub(r"jax\.random\.key\((\d)\)", rf"jax.random.key(10 * {seed} + \1)", start), variables)
        starts.append(tuple(variables[variable] for variable in ("params", "moments", "state")))
    keys = jnp.stack([jax.random.split(jax.random.key(10 * seed + 2), 300) for seed in SEEDS], axis=1)

    def advance(carry, keys):
        *carry, value = jax.vmap(variables["step"])(*carry, keys)
        return tuple(carry), value

    _, values = jax.lax.scan(advance, jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts), keys)
    return values[-LAST:].mean(axis=0).tolist()


LOSSES = {"jax": losses_in_jax, "torch": losses_in_torch}


@pytest.fixture(scope="module", params=LOSSES)
def framework(request):
    return request.param


@pytest.fixture(scope="module")
def rloo(framework):
    return LOSSES[framework]("rloo")


@pytest.mark.parametrize("name", NAMES)
def test_any_estimator_ends_below_rloo_or_within_its_noise(framework, rloo, name):
    ends = LOSSES[framework](name)
    noise = (stdev(ends) ** 2 / len(ends) + stdev(rloo) ** 2 / len(rloo)) ** 0.5
    allowed = mean(rloo) * (1 + MORE_VARIANCE.get(name, 0.0))
    assert mean(ends) < allowed + 2 * noise, f"{name}: {mean(ends):.3f}, RLOO: {mean(rloo):.3f} +- {noise:.3f}"
