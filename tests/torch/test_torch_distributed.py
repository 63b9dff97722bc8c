"""Two processes with half the batch each give the gradients of one process with the whole of it."""

import os
import time

import pytest
import torch
from torch import distributed, multiprocessing, nn

import doublecv as dcv
from doublecv.estimators import make
from doublecv.torch import Expectation

BATCH, PIXELS, LATENTS = 6, 5, 3
NAMES = ("rloo", "double-cv", "muprop", "relax")

pytestmark = pytest.mark.slow


class Autoencoder(nn.Module):
    """A loss that has an encoder, a decoder and an expectation with coefficients."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = (
            nn.Linear(*sizes, dtype=torch.float64) for sizes in ((PIXELS, LATENTS), (LATENTS, PIXELS))
        )
        q = dcv.Bernoulli(logits=torch.zeros(1, LATENTS, dtype=torch.float64))
        self.expectation = Expectation(make(name, samples=2)).init(q).double()

    def forward(self, y, noise):
        def f(x):
            reconstruction = self.decoder(torch.tanh(x))
            return (reconstruction - y).square().sum(-1)

        return self.expectation(f, dcv.Bernoulli(logits=self.encoder(y)), noise=noise).mean()


def make_batch(name):
    """Data and noise, the batch first."""
    generator = torch.Generator().manual_seed(1)
    y = torch.rand(BATCH, PIXELS, dtype=torch.float64, generator=generator)
    q = dcv.Bernoulli(logits=torch.zeros(BATCH, LATENTS))
    noise = torch.rand(make(name, samples=2).noise_shape(q), dtype=torch.float64, generator=generator)
    return y, noise.movedim(-2, 0)


def gradients(name, module, part):
    y, noise = (tensor[part] for tensor in make_batch(name))
    for _ in range(2):
        # Twice, because the reducer must find itself ready for another step.
        module.zero_grad()
        module(y, noise.movedim(0, -2)).backward()
    return {key: parameter.grad for key, parameter in module.named_parameters() if parameter.grad is not None}


def worker(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    part = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    modules = {name: nn.parallel.DistributedDataParallel(Autoencoder(name)) for name in NAMES}
    for name, module in modules.items():
        torch.save(gradients(name, module, part), f"{folder}/{name}-{rank}.pt")
    distributed.barrier()
    # Without taking down the modules: that can leave torch waiting for a lock of its own.
    os._exit(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes have left the gradients of every estimator."""
    folder = tmp_path_factory.mktemp("distributed")
    context = multiprocessing.spawn(worker, (str(folder),), nprocs=2, join=False)
    deadline = time.monotonic() + 120
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail("the two processes did not end")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(name, folder):
    wanted = {f"module.{key}": value for key, value in gradients(name, Autoencoder(name), slice(None)).items()}
    assert sum(bool(gradient.any()) for gradient in wanted.values()) >= 4
    for rank in range(2):
        found = torch.load(folder / f"{name}-{rank}.pt", weights_only=True)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
