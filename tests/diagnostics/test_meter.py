"""The one variance meter: the numbers of a two-pass computation, in every array library."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from doublecv.diagnostics.meter import add, empty, measure_squared_bias, merge, summarize

GRADIENTS = np.random.default_rng(0).gamma(2.0, size=(90, 2, 3)) + 1e4


def metered(convert, chunks, gradients=GRADIENTS):
    meter = empty(convert(np.zeros((2, 3))))
    for chunk in np.array_split(gradients, chunks):
        meter = add(meter, convert(chunk))
    return meter


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray, torch.as_tensor], ids=["numpy", "jax", "torch"])
@pytest.mark.parametrize("chunks", [1, 7, 90])
def test_mean_and_variance_are_those_of_two_passes(convert, chunks, x64):
    meter = metered(convert, chunks)
    np.testing.assert_allclose(np.asarray(meter.mean), GRADIENTS.mean(0), rtol=1e-13)
    assert summarize(meter).variance == pytest.approx(GRADIENTS.var(0, ddof=1).mean(), rel=1e-9)


def test_the_standard_error_is_that_of_the_distances():
    distances = ((GRADIENTS - GRADIENTS.mean(0)) ** 2).mean((1, 2))
    wanted = distances.std(ddof=1) / np.sqrt(len(distances))
    assert summarize(metered(np.asarray, 1)).standard_error == pytest.approx(wanted, rel=1e-9)
    assert summarize(metered(np.asarray, 9)).standard_error == pytest.approx(wanted, rel=0.1)


def test_the_standard_error_is_the_spread_of_the_variance():
    generator = np.random.default_rng(1)
    runs = [summarize(metered(np.asarray, 5, generator.normal(size=(200, 2, 3)))) for _ in range(300)]
    spread = np.std([run.variance for run in runs])
    assert np.mean([run.standard_error for run in runs]) == pytest.approx(spread, rel=0.15)


def test_merged_meters_are_one_meter():
    both = merge(metered(np.asarray, 2, GRADIENTS[:30]), metered(np.asarray, 3, GRADIENTS[30:]))
    together = metered(np.asarray, 4)
    np.testing.assert_allclose(both.mean, together.mean, rtol=1e-13)
    np.testing.assert_allclose(both.squares, together.squares, rtol=1e-9)
    assert float(both.count) == 90


def test_float32_does_not_cancel():
    meter = metered(lambda array: np.asarray(array, np.float32), 9)
    assert summarize(meter).variance == pytest.approx(GRADIENTS.var(0, ddof=1).mean(), rel=1e-2)


def test_one_gradient_has_no_variance():
    with pytest.raises(ValueError, match="draws must be at least 2 for a variance, got 1"):
        summarize(metered(np.asarray, 1, GRADIENTS[:1]))


class TestSquaredBias:
    def test_it_is_unbiased_and_its_error_is_its_spread(self):
        generator, bias = np.random.default_rng(2), np.array([0.3, 0.0, -0.1])
        runs = [measure_squared_bias(list(bias + generator.normal(size=(20, 3)))) for _ in range(2000)]
        values = np.array([run.squared_bias for run in runs])
        assert values.mean() == pytest.approx(np.mean(bias**2), abs=4 * values.std() / np.sqrt(2000))
        assert np.mean([run.standard_error for run in runs]) == pytest.approx(values.std(), rel=0.15)
        assert values.min() < 0

    def test_too_few_groups(self):
        with pytest.raises(ValueError, match="differences must be at least 3"):
            measure_squared_bias([np.zeros(2), np.zeros(2)])
