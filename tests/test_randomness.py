"""What is drawn depends on seed, purpose and epoch, and on nothing else."""

from itertools import product

import torch

from cct.randomness import generator, numpy_generator, seed_of

PURPOSES = ("init", "order", "augment", "mix", "dropout")


def test_seeds_differ_by_seed_purpose_and_epoch():
    keys = list(product(range(13), PURPOSES, range(13)))
    seeds = {seed_of(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # all 63 bits are used


def test_a_seed_is_the_same_in_every_process_and_version():
    assert seed_of(0, "init") == seed_of(0, "init", 0) == 1391976149099393129


def test_the_same_key_repeats_its_stream_whatever_was_drawn_before():
    first = torch.rand(100, generator=generator(3, "order", 7))
    torch.manual_seed(99)
    torch.rand(5)
    torch.rand(5, generator=generator(3, "order", 8))
    assert torch.equal(torch.rand(100, generator=generator(3, "order", 7)), first)


def test_making_a_generator_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    torch.rand(5, generator=generator(0, "augment", 1))
    assert torch.equal(torch.get_rng_state(), before)


def test_streams_of_neighbouring_keys_are_unrelated():
    keys = product((0, 1), PURPOSES, (0, 1))
    streams = torch.stack([torch.rand(2000, generator=generator(*key)) for key in keys])
    correlations = torch.corrcoef(streams) - torch.eye(len(streams))
    assert correlations.abs().max() < 0.1


def test_numpy_draws_are_a_function_of_the_same_three():
    keys = list(product((0, 1), PURPOSES, (0, 1)))
    first = [numpy_generator(*key).random() for key in keys]
    assert [numpy_generator(*key).random() for key in keys] == first
    assert len(set(first)) == len(keys)


def test_a_generator_draws_on_the_cpu():
    assert generator(0, "order", 0).device == torch.device("cpu")
