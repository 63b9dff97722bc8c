"""A VAE with binary latent variables, trained with Double CV on scikit-learn's digits.

Run it with `python examples/torch_vae.py`. It prints the ELBO as it trains and ends with the variance of the gradient
that Double CV gives, beside that of RLOO on the same parameters.
"""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn

import doublecv as dcv
from doublecv.torch import Expectation, estimate

PIXELS, LATENTS, BATCH, SAMPLES = 64, 200, 100, 2


class VAE(nn.Module):
    """One dense layer on either side, and a uniform prior on the latent variables."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(PIXELS, LATENTS), nn.Linear(LATENTS, PIXELS)

    def posterior(self, y: torch.Tensor) -> dcv.Bernoulli:
        """q(x | y)."""
        return dcv.Bernoulli(logits=self.encoder(y))

    def negative_elbo(self, x: torch.Tensor, y: torch.Tensor, q: dcv.Bernoulli) -> torch.Tensor:
        """log q(x | y) - log p(x) - log p(y | x), at samples x of shape [K, batch, latents]."""
        logits = self.decoder(x)
        log_likelihood = -nn.functional.binary_cross_entropy_with_logits(
            logits, y.expand_as(logits), reduction="none"
        ).sum(-1)
        return q.log_prob(x) + LATENTS * math.log(2) - log_likelihood


def gradient_variance(vae: VAE, y: torch.Tensor, expectation: Expectation, draws: int = 200) -> float:
    """The variance of the gradient in the logits, averaged over the logits and the batch y."""
    with torch.no_grad():
        q = vae.posterior(y)
        gradients = [
            estimate(
                lambda x: vae.negative_elbo(x, y, q), q, expectation.estimator, expectation.coefficients()
            ).gradient
            for _ in range(draws)
        ]
    return torch.stack(gradients).var(0).mean().item()


def main(steps: int = 1000) -> tuple[float, float]:
    """Train, and return the variances of Double CV and of RLOO."""
    torch.manual_seed(0)
    images = torch.tensor(load_digits().data > 7, dtype=torch.float32)
    vae, expectation = VAE(), Expectation(dcv.DoubleCV(SAMPLES))
    optimizer = torch.optim.Adam([{"params": vae.parameters()}, {"params": expectation.parameters(), "lr": 1e-2}])

    for step in range(1, steps + 1):
        y = images[torch.randint(len(images), (BATCH,))]
        q = vae.posterior(y)
        held = q.detach()  # the gradient of log q(x) itself has mean 0
        loss = expectation(lambda x, y=y, held=held: vae.negative_elbo(x, y, held), q).mean()
        optimizer.zero_grad()
        loss.backward()  # the decoder, the encoder and alpha, in one backward pass
        optimizer.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step:5d}   ELBO {-loss.item():7.2f}   alpha {expectation.alpha.item():6.3f}")

    double_cv = gradient_variance(vae, images[:BATCH], expectation)
    rloo = gradient_variance(vae, images[:BATCH], Expectation(dcv.RLOO(SAMPLES)))
    print(f"variance of the gradient: Double CV {double_cv:.3g}, RLOO {rloo:.3g}, ratio {double_cv / rloo:.2f}")
    return double_cv, rloo


if __name__ == "__main__":
    main()
