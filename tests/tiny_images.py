"""A data set that is small enough for exact sums, and settings that fit it."""

import numpy as np

from doublecv.lab.data import Dataset
from doublecv.lab.train.settings import TrainSettings


def tiny_dataset(train=60, height=2, width=3):
    images = np.random.RandomState(0).randint(0, 256, (train + 20, height * width)).astype(np.uint8)
    return Dataset("tiny", height, width, images[:train], images[train : train + 9], images[train + 9 :])


def tiny_settings(**changes):
    return TrainSettings(
        **{
            "network": "linear",
            "latents": 3,
            "batch": 10,
            "steps": 12,
            "record_every": 4,
            "evaluate_every": 6,
            "checkpoint_every": 4,
            "bound_samples": 5,
        }
        | changes
    )
