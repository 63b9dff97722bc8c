"""A VAE with binary latent variables in PyTorch, trained with DoubleCV, and compared with RLOO on the way.

It shows how the module `Expectation` is used in a training loop (alpha is its parameter, and one `backward` serves the
decoder, the encoder and alpha) and how to measure gradients with `estimate`. The data are scikit-learn's digits. Run

    python examples/torch_vae.py [--steps 2000] [--figure torch_vae.png]
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import tyro
from sklearn.datasets import load_digits
from torch import Tensor, nn

import doublecv as dcv
from doublecv.torch import Expectation

PIXELS, LATENTS, BATCH, SAMPLES = 64, 200, 100, 2
IMAGES = torch.tensor(load_digits().data > 7, dtype=torch.float32)


class VAE(nn.Module):
    """Encode and decode with one dense layer each; the prior of the latent variables is uniform."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(PIXELS, LATENTS), nn.Linear(LATENTS, PIXELS)

    def posterior(self, y: Tensor) -> dcv.Bernoulli:
        """Return q(x | y)."""
        return dcv.Bernoulli(logits=self.encoder(y))

    def negative_elbo(self, x: Tensor, y: Tensor, q: dcv.Bernoulli) -> Tensor:
        """Return log q(x | y) - log p(x) - log p(y | x) at samples x of shape [K, batch, latents]."""
        pixels = dcv.Bernoulli(logits=self.decoder(x))
        return q.log_prob(x) + LATENTS * math.log(2) - pixels.log_prob(y.expand_as(pixels.logits))


def gradient_variance(vae: VAE, expectation: Expectation, draws: int = 50) -> float:
    """Return the variance of the gradient in the logits, averaged over the logits and the first 100 images."""
    with torch.no_grad():
        y, q = IMAGES[:BATCH], vae.posterior(IMAGES[:BATCH])
        draw = lambda: expectation.estimate(lambda x: vae.negative_elbo(x, y, q), q).gradient  # noqa: E731
        return torch.stack([draw() for _ in range(draws)]).var(0).mean().item()


def main(steps: int = 2000, figure: Path = Path("torch_vae.png")) -> None:
    """Train, print a table and draw a figure."""
    torch.manual_seed(0)
    vae, expectation = VAE(), Expectation(dcv.DoubleCV(SAMPLES, learning="gradient"))
    both = expectation, Expectation(dcv.RLOO(SAMPLES))
    optimizer = torch.optim.Adam([{"params": vae.parameters()}, {"params": expectation.parameters(), "lr": 1e-2}])
    record = []
    print(f"{'step':>6}  {'ELBO':>7}  {'alpha':>6}  variance of DoubleCV  variance of RLOO")
    for step in range(1, steps + 1):
        y = IMAGES[torch.randint(len(IMAGES), (BATCH,))]
        q = vae.posterior(y)
        held = q.detach()  # the gradient of log q(x) in the logits has mean 0
        loss = expectation(lambda x, y=y, held=held: vae.negative_elbo(x, y, held), q).mean()
        optimizer.zero_grad()
        loss.backward()  # the decoder, the encoder and alpha, in one backward pass
        optimizer.step()
        if step % max(1, steps // 20) == 0:
            record.append((step, -loss.item(), expectation.alpha.item(), *(gradient_variance(vae, e) for e in both)))
            print("{:6d}  {:7.2f}  {:6.3f}  {:20.3g}  {:16.3g}".format(*record[-1]), flush=True)

    at, elbo, alpha, of_double_cv, of_rloo = zip(*record, strict=True)
    canvas, axes = plt.subplot_mosaic("evap", figsize=(13, 3.2), layout="constrained")
    axes["e"].plot(at, elbo)
    axes["e"].set(xlabel="step", ylabel="ELBO of a batch (nats per image)")
    axes["v"].semilogy(at, of_rloo, label="RLOO")
    axes["v"].semilogy(at, of_double_cv, label="DoubleCV")
    axes["v"].set(xlabel="step", ylabel="variance, same parameters")
    axes["v"].legend(frameon=False)
    axes["a"].plot(at, alpha)
    axes["a"].set(xlabel="step", ylabel="alpha")
    with torch.no_grad():
        reconstructions = vae.decoder(vae.posterior(IMAGES[:12]).mean.round()).sigmoid()
    pairs = nn.functional.pad(torch.stack([IMAGES[:12], reconstructions], 1).reshape(4, 6, 8, 8), (1, 1, 1, 1))
    axes["p"].imshow(pairs.permute(0, 2, 1, 3).reshape(40, 60), cmap="gray_r")
    axes["p"].set(xticks=[], yticks=[], title="digits and their reconstructions")
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
