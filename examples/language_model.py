"""A tiny language model trained on a black-box reward in PyTorch, with advantages of samples from elsewhere.

A recurrent model gets a prompt, a digit, and writes five digits. The reward is computed by a program: it is 1 if the
digits add up to three times the prompt, less for every unit that they miss. Only log-probabilities and rewards are
known, as in training with human feedback, so `score_function_loss` is all that is needed. Run

    python examples/language_model.py [--steps 500] [--figure language_model.png]
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
import tyro
from torch import Tensor, nn

import doublecv as dcv

DIGITS, LENGTH, SAMPLES, PROMPTS, WIDTH = 10, 5, 4, 16, 64


class LanguageModel(nn.Module):
    """A recurrent network over digits."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.token = nn.Embedding(DIGITS, WIDTH), nn.Embedding(DIGITS, WIDTH)
        self.cell, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, DIGITS)

    def write(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the digits that follow each prompt, and their log-probability."""
        state, read, written, log_prob = self.prompt(prompts), self.prompt(prompts), [], 0.0
        for _ in range(LENGTH):
            state = self.cell(read, state)
            choice = torch.distributions.Categorical(logits=self.head(state))
            digit = choice.sample()
            written.append(digit)
            log_prob = log_prob + choice.log_prob(digit)
            read = self.token(digit)
        return torch.stack(written, -1), log_prob


def reward(prompts: Tensor, digits: Tensor) -> Tensor:
    """Return the reward, which the model cannot differentiate."""
    return 1 - (digits.sum(-1) - 3 * prompts).abs() / 10


def gradient(model: LanguageModel, prompts: Tensor, baseline: str) -> tuple[Tensor, list[Tensor]]:
    """Return the mean reward and the gradient of its negative."""
    several = prompts.expand(SAMPLES, PROMPTS)
    digits, log_prob = model.write(several.reshape(-1))
    rewards = reward(several, digits.reshape(SAMPLES, PROMPTS, LENGTH))
    loss = -dcv.score_function_loss(log_prob.reshape(SAMPLES, PROMPTS), rewards, baseline).mean()
    return rewards.mean(), list(torch.autograd.grad(loss, list(model.parameters())))


def train(baseline: str, steps: int) -> tuple[list[float], float]:
    """Return the rewards along the way, and the variance of the gradient halfway."""
    torch.manual_seed(0)
    model, rewards, variance = LanguageModel(), [], 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        prompts = torch.randint(DIGITS, (PROMPTS,))
        mean, gradients = gradient(model, prompts, baseline)
        for parameter, found in zip(model.parameters(), gradients, strict=True):
            parameter.grad = found
        optimizer.step()
        rewards.append(mean.item())
        if step == steps // 2:
            draws = [torch.cat([g.flatten() for g in gradient(model, prompts, baseline)[1]]) for _ in range(50)]
            variance = torch.stack(draws).var(0).sum().item()
    return rewards, variance


def main(steps: int = 500, figure: Path = Path("language_model.png")) -> None:
    """Train with three baselines, print a table and draw a figure."""
    canvas, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    print("baseline       first reward  last reward  variance of the gradient")
    for baseline in ("none", "leave-one-out", "shrunken"):
        rewards, variance = train(baseline, steps)
        part = max(1, steps // 10)
        smooth = [sum(rewards[i : i + part]) / part for i in range(0, len(rewards) - part + 1, part)]
        print(f"{baseline:13}  {smooth[0]:12.3f}  {smooth[-1]:11.3f}  {variance:.4f}", flush=True)
        axes.plot(range(part, part * len(smooth) + 1, part), smooth, label=baseline)
    axes.set(xlabel="step", ylabel="reward")
    axes.legend(frameon=False)
    canvas.savefig(figure, dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
