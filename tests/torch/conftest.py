"""What all tests of the PyTorch front-end share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The tensors are small: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
