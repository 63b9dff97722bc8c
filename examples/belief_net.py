"""A belief net with two stochastic layers in PyTorch: one path per sample serves both layers.

The second layer is drawn given the first, so `Layers` takes a distribution and a function. K paths cost K evaluations
of the ELBO, and the control variates of the quadratic form hold along the path. It is compared with the joint
leave-one-out estimator of both layers, `RLOO`. The data are scikit-learn's digits. Run

    python examples/belief_net.py [--steps 500] [--figure belief_net.png]
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

PIXELS, LOWER, UPPER, BATCH, SAMPLES = 64, 30, 15, 50, 2
IMAGES = torch.tensor(load_digits().data > 7, dtype=torch.float32)


class BeliefNet(nn.Module):
    """p(y | x1) p(x1 | x2) p(x2) with a uniform p(x2), and q(x1 | y) q(x2 | x1)."""

    def __init__(self) -> None:
        super().__init__()
        self.to_lower, self.to_upper = nn.Linear(PIXELS, LOWER), nn.Linear(LOWER, UPPER)
        self.from_upper, self.from_lower = nn.Linear(UPPER, LOWER), nn.Linear(LOWER, PIXELS)

    def posterior(self, y: Tensor) -> dcv.Layers:
        """Return q(x1 | y) q(x2 | x1)."""
        return dcv.Layers(
            dcv.Bernoulli(logits=self.to_lower(y)), lambda lower: dcv.Bernoulli(logits=self.to_upper(lower))
        )

    def negative_elbo(self, x: tuple[Tensor, Tensor], y: Tensor, q: dcv.Layers) -> Tensor:
        """Return log q(x) - log p(x, y) for K paths; q is held constant."""
        lower, upper = x
        pixels, prior = dcv.Bernoulli(logits=self.from_lower(lower)), dcv.Bernoulli(logits=self.from_upper(upper))
        log_p = pixels.log_prob(y.expand_as(pixels.logits)) + prior.log_prob(lower) - UPPER * math.log(2)
        return q.log_prob(x) - log_p


def encoder_gradient(net: BeliefNet, expectation: Expectation) -> Tensor:
    """Return one estimate of the gradient in the encoder of both layers, at the first images."""
    y, encoder = IMAGES[:BATCH], [*net.to_lower.parameters(), *net.to_upper.parameters()]
    q = net.posterior(y)
    loss = expectation(lambda x: net.negative_elbo(x, y, q.detach()), q).mean()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, encoder)])


def train(estimator: dcv.Estimator, steps: int) -> tuple[list[float], list[float]]:
    """Return the ELBO of the batches, and the variance of the encoder's gradient relative to RLOO's along the way."""
    torch.manual_seed(0)
    net, expectation = BeliefNet(), Expectation(estimator)
    rloo, measuring = Expectation(dcv.RLOO(SAMPLES)), Expectation(estimator)
    optimizer = torch.optim.Adam([*net.parameters(), *expectation.parameters()], lr=3e-3)
    elbo, ratio = [], []
    for step in range(1, steps + 1):
        y = IMAGES[torch.randint(len(IMAGES), (BATCH,))]
        q = net.posterior(y)
        loss = expectation(lambda x, y=y, q=q: net.negative_elbo(x, y, q.detach()), q).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        elbo.append(-loss.item())
        if step % max(1, steps // 4) == 0:
            measuring.load_state_dict(expectation.state_dict())
            measuring.eval()
            draws = [torch.stack([encoder_gradient(net, e) for _ in range(30)]) for e in (measuring, rloo)]
            ratio.append((draws[0].var(0).sum() / draws[1].var(0).sum()).item())
    return elbo, ratio


def main(steps: int = 500, figure: Path = Path("belief_net.png")) -> None:
    """Train with three estimators, print a table and draw a figure."""
    canvas, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    print(f"{'estimator':20}  first ELBO  last ELBO  variance relative to RLOO (mean of the second half)")
    for name in ("rloo", "double-cv", "quadratic-double-cv"):
        elbo, ratio = train(dcv.make(name, samples=SAMPLES), steps)
        part = min(20, steps)
        smooth = [sum(elbo[i : i + part]) / part for i in range(0, len(elbo) - part + 1, part)]
        half = ratio[len(ratio) // 2 :]
        print(f"{name:20}  {smooth[0]:10.2f}  {smooth[-1]:9.2f}  {sum(half) / len(half):.2f}", flush=True)
        axes[0].plot(range(part, part * len(smooth) + 1, part), smooth, label=name)
        axes[1].plot([(i + 1) * max(1, steps // 4) for i in range(len(ratio))], ratio)
    axes[0].set(xlabel="step", ylabel="ELBO (nats per image)")
    axes[1].set(xlabel="step", ylabel="variance relative to RLOO")
    axes[0].legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
