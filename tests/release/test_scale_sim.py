"""The model of benchmarks/scale_sim.py where its answer is known: closed forms, limits, and that nothing is lost or counted twice."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from benches import benchmark


@pytest.fixture(scope="module")
def sim(root) -> ModuleType:
    return benchmark("scale_sim")


@pytest.fixture(scope="module")
def job(sim):
    model, chip = sim.Model(1e9, 1e9, 16, 32_768), sim.Chip(1e15, 3e12, 80e9)
    return sim.Job(model, chip, 8, 1, 16, 8, mean=300, cap=2048, prompt=100)


def test_every_sample_is_trained_once(sim, job):
    for lag, sampling in ((0, 0), (2, 0), (0, 4), (3, 4)):
        found = sim.simulate(replace(job, lag=lag, sampling=sampling), sim.Costs(rows=7))
        assert set(found.trained.values()) == {1}
        batches = {batch for batch, _ in found.trained}
        assert batches == set(range(len(batches)))
        assert Counter(batch for batch, _ in found.trained) == dict.fromkeys(batches, 128)


def test_one_gpu_and_one_length_by_the_formula(sim, job):
    """prefill once a prompt, 300 steps of 128 rows whose cache grows, driver, judge, learner, sync."""
    one, costs = replace(job, gpus=1, sigma=0.0), sim.Costs(driver=1e-6, batch=1e-5, judge=0.003, judges=1)
    weights, cache = 2e9 / (3e12 * 0.75), 32_768 / (3e12 * 0.75)
    decode = 300 * (weights + costs.step) + cache * 128 * (300 * 100 + 300**2 / 2)
    prefill = 16 * 2 * 1e9 * 100 / (0.4 * 1e15)
    learn = 8 * 1e9 * 128 * 400 / (0.4 * 1e15)
    rest = 1e-6 + 128 * 0.003 + 128 * 1e-5 + 2e9 / 50e9 + costs.wake
    assert sim.simulate(one, costs).step == pytest.approx(decode + prefill + learn + rest, rel=1e-9)


def test_rows_that_find_no_room_wait(sim, job):
    one = replace(job, gpus=1, sigma=0.0, prompt=0)
    costs = sim.Costs(driver=0, batch=0, judge=0, wake=0)
    turn = [300 * sim.decode_step(one, costs, rows, rows * 150) for rows in (128, 32)]
    rest = sim.learn(one, costs, 128 * 300) + sim.sync(one, costs)
    assert sim.simulate(one, costs).step == pytest.approx(turn[0] + rest, rel=1e-9)
    assert sim.simulate(one, replace(costs, rows=32)).step == pytest.approx(4 * turn[1] + rest, rel=1e-9)


@pytest.mark.parametrize("sampling", [0, 32])
def test_more_lag_is_never_slower_and_the_learner_bounds_it(sim, job, sampling):
    here = replace(job, gpus=64, prompts=64, sampling=sampling)
    steps = [sim.simulate(replace(here, lag=lag), steps=12).step for lag in range(5)]
    assert all(after <= before * 1.02 for before, after in itertools.pairwise(steps))
    assert steps[4] < 0.7 * steps[0]
    assert steps[4] >= sim.learn(here, sim.Costs(), 512 * 400) * 0.9 + sim.sync(here, sim.Costs())


def test_many_gpus_leave_the_longest_row(sim, job):
    """Amdahl: a row alone on each GPU takes its own length, however many GPUs there are."""
    alone = replace(job, gpus=128, prompt=0)
    costs = sim.Costs(driver=0, batch=0, judge=0, wake=0)
    tail = np.mean([max(sim.lengths(alone, batch, 0)) for batch in range(1, 7)])
    least = tail * sim.decode_step(alone, costs, 1, 0)
    found = [sim.simulate(replace(alone, gpus=gpus), costs).step for gpus in (128, 1024)]
    assert least <= found[1] <= found[0] <= 1.1 * least


def test_the_driver_is_the_limit_where_it_is_slow(sim, job):
    costs = sim.Costs(driver=0.01, batch=0.002)
    found = sim.simulate(replace(job, gpus=64, sampling=32, lag=4), costs)
    assert 0.99 < found.step / (128 * 0.012) < 1.15
    assert found.driver > 0.9


@pytest.mark.parametrize(("mean", "sigma", "cap"), [(500, 1.0, 2048), (3000, 1.0, 4096), (1500, 0.6, 28_672)])
def test_cut_lengths_have_the_mean_that_was_asked_for(sim, job, mean, sigma, cap):
    many = replace(job, prompts=2500, mean=mean, sigma=sigma, cap=cap)
    drawn = np.array(sim.lengths(many, 0, 0))
    assert drawn.max() <= cap
    assert abs(drawn.mean() - mean) < 4 * drawn.std() / math.sqrt(len(drawn))


def test_experts_are_read_as_rows_choose_them(sim):
    model = sim.Model(30e9, 3e9, 48, 1, experts=128, used=8)
    assert model.read(1) == 6e9
    assert model.read(1000) == pytest.approx(60e9)
    assert 6e9 < model.read(16) < 60e9


def test_a_model_that_does_not_fit_is_refused(sim, job):
    with pytest.raises(ValueError, match="raise tp"):
        sim.simulate(replace(job, model=sim.Model(70e9, 70e9, 80, 327_680)))
