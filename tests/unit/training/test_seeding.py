"""One seed for all generators, and the shield around evaluation."""

from __future__ import annotations

import random

import numpy as np
import torch

from frostline.training.seeding import preserved_rng, seed_everything


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_the_same_seed_gives_the_same_numbers():
    seed_everything(3, deterministic=False)
    first = draw()
    seed_everything(3, deterministic=False)
    assert draw() == first
    seed_everything(4, deterministic=False)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_preserved_rng_gives_back_all_generators_also_after_an_error():
    seed_everything(3, deterministic=False)
    expected = [draw(), draw()]
    seed_everything(3, deterministic=False)
    found = [draw()]
    try:
        with preserved_rng(torch.device("cpu")):
            draw()
            raise KeyError
    except KeyError:
        pass
    found.append(draw())
    assert found == expected


def test_deterministic_sets_and_clears_the_flag():
    try:
        seed_everything(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        seed_everything(0, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
