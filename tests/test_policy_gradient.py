"""Advantages of samples from elsewhere: exact unbiasedness, equality over the array libraries, bounds and errors."""

from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from doublecv import advantages, pass_at_k, score_function_loss

ACTIONS = 2
LOGITS = np.array([[0.3, -0.4], [-1.1, 0.2], [0.8, 0.7]])
REWARDS = np.array([[1.0, 0.2], [3.0, -1.0], [0.5, 2.5]])


def _expected_gradient(samples, mask=None, groups=3, **options):
    """The exact mean of the estimate over all outcomes, for every group's logits."""
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    total, group = np.zeros((groups, ACTIONS)), np.arange(groups)
    for outcome in product(range(ACTIONS), repeat=samples * groups):
        actions = np.array(outcome).reshape(samples, groups)
        probability = probabilities[group, actions].prod()
        a = advantages(REWARDS[group, actions], mask=mask, **options)
        score = np.eye(ACTIONS)[actions] - probabilities[:groups]
        size = samples if mask is None else np.maximum(mask.sum(0), 1)[:, None]
        total += probability * (a[..., None] * score).sum(0) / size
    return total


def _true_gradient():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    return p * (REWARDS - (p * REWARDS).sum(-1, keepdims=True))


@pytest.mark.parametrize("baseline", ["leave-one-out", "shrunken", "none"])
@pytest.mark.parametrize("samples", [2, 3])
def test_the_gradient_is_unbiased(baseline, samples):
    np.testing.assert_allclose(_expected_gradient(samples, baseline=baseline), _true_gradient(), atol=1e-12)


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_a_standardised_gradient_is_biased_as_documented(scale):
    assert np.abs(_expected_gradient(2, standardize=scale) - _true_gradient()).max() > 1e-3


@pytest.mark.parametrize("baseline", ["leave-one-out", "shrunken"])
def test_groups_of_unequal_size_are_unbiased(baseline):
    mask = np.array([[True, True, True], [True, True, True], [True, False, False]])
    np.testing.assert_allclose(_expected_gradient(3, mask, baseline=baseline), _true_gradient(), atol=1e-12)


def test_a_single_sample_has_a_shrunken_baseline_only():
    mask = np.array([[True, True, True], [True, True, False]])
    np.testing.assert_allclose(_expected_gradient(2, mask, baseline="shrunken"), _true_gradient(), atol=1e-12)
    assert np.all(advantages(REWARDS.T, mask=mask)[:, 2] == 0)


def test_shrinkage_has_less_variance_where_groups_are_alike():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, 5000)) + 0.1 * generator.normal(size=5000)
    error = {name: (values - advantages(values, name)).var() for name in ("leave-one-out", "shrunken")}
    # The spread of the means holds their own variance, so at most half of the way is gone: a fourth of the error.
    assert error["shrunken"] < 0.27 * error["leave-one-out"]


def test_the_coefficient_of_shrinkage_is_that_of_the_paper():
    """Equations 13 to 16 of Zeng et al. (2025), group by group."""
    values = np.random.default_rng(5).normal(size=(3, 4)) + np.array([0.0, 0.5, 2.0, 0.3])
    found = advantages(values, "shrunken")
    for i in range(4):
        others = np.delete(values, i, axis=1)
        target = others.mean()
        variance = np.mean(others.var(axis=0, ddof=1)) / 3
        spread = np.mean((others.mean(0) - target) ** 2)
        coefficient = 3 / 4 * variance / (variance + spread)
        for k in range(3):
            mean = np.delete(values[:, i], k).mean()
            wanted = values[k, i] - ((1 - coefficient) * mean + coefficient * target)
            np.testing.assert_allclose(found[k, i], wanted, rtol=1e-12)


@pytest.mark.parametrize(("samples", "groups", "share"), [(2, 32, 0.52), (4, 32, 0.67), (8, 32, 0.80), (8, 3, 1.4)])
def test_the_error_of_the_shrunken_baseline_is_as_documented(samples, groups, share):
    generator, error = np.random.default_rng(6), {"leave-one-out": 0.0, "shrunken": 0.0}
    for _ in range(20_000 // groups):
        mean = generator.uniform(size=groups)
        values = (generator.uniform(size=(samples, groups)) < mean).astype(float)
        for name in error:
            error[name] += np.sum((values - advantages(values, name) - mean) ** 2)
    np.testing.assert_allclose(error["shrunken"] / error["leave-one-out"], share, rtol=0.05)


def test_values_behind_the_mask_do_not_matter():
    mask = np.array([[True, True, True], [True, True, True], [True, False, True]])
    values = np.random.default_rng(1).normal(size=(3, 3))
    damaged = np.where(mask, values, np.nan)
    for options in ({}, {"baseline": "shrunken"}, {"pass_at": 2}, {"standardize": "batch"}):
        of_values, of_damaged = (advantages(v, mask=mask, **options) for v in (values, damaged))
        np.testing.assert_array_equal(of_values, of_damaged)
    losses = score_function_loss(values, damaged, mask=mask), score_function_loss(damaged, values, mask=mask)
    np.testing.assert_array_equal(*losses)


def test_the_best_of_k_is_the_mean_over_all_subsets():
    values = np.array([0.5, -1.0, 2.0, 2.0, 0.1])
    for k in range(1, 6):
        wanted = np.mean([max(subset) for subset in combinations(values, k)])
        np.testing.assert_allclose(pass_at_k(values, k), wanted, rtol=1e-12)
    ones = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(pass_at_k(ones, 3), 1 - 4 / 20, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_advantages_of_pass_at_k_are_means_over_subsets(k):
    values = np.array([0.5, -1.0, 2.0, 2.0])
    for i, a in enumerate(advantages(values, pass_at=k)):
        others = [j for j in range(4) if j != i]
        with_i = np.mean([max([values[i], *values[list(s)]]) for s in combinations(others, k - 1)])
        without = np.mean([max(values[list(s)]) for s in combinations(others, k)])
        np.testing.assert_allclose(a, k * (with_i - without), atol=1e-12)


@pytest.mark.parametrize(("samples", "mask"), [(3, None), (4, np.array([[True], [True], [True], [False]]))])
def test_the_gradient_of_pass_at_k_is_unbiased(samples, mask):
    rewards = REWARDS[0]

    def expected_maximum(logits):
        p = np.exp(logits) / np.exp(logits).sum()
        return sum(p[a] * p[b] * max(rewards[a], rewards[b]) for a in (0, 1) for b in (0, 1))

    wanted = np.zeros(2)
    for action in (0, 1):
        step = np.zeros(2)
        step[action] = 1e-6
        wanted[action] = (expected_maximum(LOGITS[0] + step) - expected_maximum(LOGITS[0] - step)) / 2e-6
    np.testing.assert_allclose(_expected_gradient(samples, mask, groups=1, pass_at=2)[0], wanted, atol=1e-9)


@pytest.mark.parametrize("baseline", ["leave-one-out", "shrunken"])
@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_standardised_advantages_cannot_explode(baseline, scale, size):
    generator = np.random.default_rng(2)
    values = np.float32(size) * (0.1 + 1e-7 * generator.normal(size=(4, 6))).astype(np.float32)
    values[:, 3:] = np.float32(size * 0.7)
    result = advantages(values, baseline, standardize=scale)
    bound = values.shape[0] if scale == "group" else values.size
    assert np.all(np.abs(result) <= 1.001 * bound**0.5)
    assert np.all(advantages(values[:, 3:], "leave-one-out", standardize=scale) == 0)


@pytest.mark.parametrize("options", [{}, {"baseline": "shrunken"}, {"pass_at": 2}, {"standardize": "group"}])
@pytest.mark.parametrize("masked", [False, True])
def test_the_array_libraries_agree(options, masked, x64):
    generator = np.random.default_rng(3)
    values, log_prob = generator.normal(size=(4, 2, 3)), generator.normal(size=(4, 2, 3))
    mask = generator.random(size=values.shape) < 0.7 if masked else None
    wanted = advantages(values, mask=mask, **options)
    loss = score_function_loss(log_prob, values, mask=mask, **options)
    scores = wanted / (4 if mask is None else np.maximum(mask.sum(0), 1))

    def total(log_prob, values, mask):
        return score_function_loss(log_prob, values, mask=mask, **options).sum()

    @jax.jit
    def everything(log_prob, values, mask):
        return advantages(values, mask=mask, **options), *jax.value_and_grad(total)(log_prob, values, mask)

    jax_mask = None if mask is None else jnp.asarray(mask)
    found = everything(jnp.asarray(log_prob), jnp.asarray(values), jax_mask)
    for given, expected in zip(found, (wanted, loss.sum(), scores), strict=True):
        np.testing.assert_allclose(given, expected, atol=1e-12)
    tensor, torch_mask = torch.tensor(log_prob, requires_grad=True), None if mask is None else torch.tensor(mask)
    of_torch = score_function_loss(tensor, torch.tensor(values), mask=torch_mask, **options)
    np.testing.assert_allclose(of_torch.detach(), loss, atol=1e-12)
    of_torch.sum().backward()
    np.testing.assert_allclose(tensor.grad, scores, atol=1e-12)


def test_narrow_types_are_summed_in_single_precision():
    values = torch.linspace(0, 1, 301).to(torch.bfloat16)
    result = advantages(values)
    assert result.dtype == torch.bfloat16
    np.testing.assert_allclose(result.float(), advantages(values.double()), atol=4e-3)


def test_values_may_depend_on_the_parameters():
    gradient = jax.grad(lambda t: score_function_loss(jnp.zeros(2), t * jnp.array([1.0, 3.0])))(2.0)
    np.testing.assert_allclose(gradient, 2.0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([np.array([1, 0])], {}, "values must have a floating type"),
        ([[1.0, 0.0]], {}, "values must be a NumPy, JAX or torch array"),
        ([np.ones((1, 4))], {}, "at least two samples"),
        ([np.ones(())], {}, "shape \\[K, \\*batch\\]"),
        ([np.ones((3, 2)), "shrunken"], {}, "at least three groups"),
        ([np.ones(3), "rloo"], {}, "baseline must be one of"),
        ([np.ones(3)], {"standardize": True}, "standardize must be one of"),
        ([np.ones(3)], {"pass_at": 3}, "pass_at must be from 1 to K - 1 = 2, got 3"),
        ([np.ones(3), "none"], {"pass_at": 2}, "baseline must be 'leave-one-out' for pass_at"),
        ([np.ones(3)], {"mask": np.ones(3)}, "mask must be an array of booleans"),
        ([np.ones(3)], {"mask": np.ones(2, bool)}, "mask must have the shape of values"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        advantages(*arguments, **options)


def test_the_log_probabilities_must_be_summed_over_tokens():
    with pytest.raises(ValueError, match="sum it over the steps or tokens"):
        score_function_loss(np.zeros((3, 7)), np.zeros(3))
