"""A learner over several ranks takes the steps of one: gradients, weights, checkpoints, faults. One group of processes."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from jurat.engine import checkpoint, lora
from jurat.engine.fsdp import learner as learning
from jurat.engine.fsdp.learner import FsdpLearner
from jurat.engine.fsdp.lora import FsdpLoRALearner, names_of
from jurat.engine.fsdp.processes import Processes
from jurat.engine.fsdp.worker import Rank, RankSpec, to_columns
from jurat.engine.learner import LocalLearner, Tally
from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.weights import FlatWeights
from jurat.engine.reshard import Layout, within
from jurat.engine.simple.learner import SimpleNetwork, SimpleValueNetwork
from jurat.engine.simple.lora import BareScorer, SimpleLoRA
from jurat.engine.tensorfile import lay_out, load_tensors
from jurat.platform.errors import ConfigError, ModelError, RunFailed
from jurat.platform.recipe import LoRA, Optim
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.cross_entropy import CrossEntropy
from jurat.trainers.losses.value import ValueLoss

GROUPS = [(9, (3, 5, 1)), (4, (4, 2)), (12, (2, 6))]
OPTIM = Optim(lr=1e-2, schedule="linear", warmup_steps=1, weight_decay=0.01)
CALM = Optim(lr=1e-3, weight_decay=0.01)
WORLDS = [(1, 1), (2, 1), (4, 1), (4, 2)]
OBJECTIVE = Clipped()


@pytest.fixture(scope="module")
def group():
    """Makes processes at first use, and again after a test that ended them."""
    made: list[Processes] = []

    def group() -> Processes:
        if not made or made[-1].failed:
            made.append(Processes(4, env={"OMP_NUM_THREADS": "1"}))
        return made[-1]

    yield group
    for processes in made:
        processes.close()


def qwen3(**changes):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = {
        "vocab_size": 98, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "tie_word_embeddings": False,
        "initializer_range": 0.3, **changes,
    }  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=98, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.3,
    ))  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture
def source(make, tmp_path):
    make.llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def open_ranks(group, source):
    made = []

    def open_ranks(ranks=2, tp=1, folder=source, **changes) -> FsdpLearner:
        leave()
        spec = RankSpec(folder=folder, ranks=ranks, tp=tp, optim=OPTIM, total=8, **{"dtype": "float32", **changes})
        made.append((FsdpLoRALearner if spec.adapters else FsdpLearner)(spec, group()))
        return made[-1]

    def leave() -> None:
        while made:
            made.pop().leave()

    yield open_ranks
    leave()


def one(model, source, *, optim=OPTIM) -> LocalLearner:
    return LocalLearner(SimpleNetwork(model, dtype=torch.float32), optim, total=8, source=source)


def uneven(make, mb, ranks):
    """Segments of ``mb`` dealt so that ranks have different counts of tokens, and some none."""
    parts = [make.slice(mb, a, b) for a, b in itertools.pairwise((0, 2, 3, 4, 7))]
    empty = make.slice(mb, 0, 0)
    dealt = [parts[0], parts[1], empty, parts[2], empty, parts[3]]
    dealt += [empty] * (-len(dealt) % ranks)
    return tuple(tuple(dealt[r : r + ranks]) for r in range(0, len(dealt), ranks))


def whole(learner: FsdpLearner) -> dict[str, torch.Tensor]:
    found = {name: torch.full(shape, torch.nan) for name, shape in learner.shapes.items()}
    learner.pull(found)
    return found


def gradient(learner: FsdpLearner, rounds, objective=OBJECTIVE) -> dict[str, torch.Tensor]:
    """The summed gradient, put together from the ranks' boxes."""
    found = {name: torch.full(shape, torch.nan) for name, shape in learner.shapes.items()}
    for boxes in learner.wait(learner._dealt, "gradients", rounds, objective):
        for name, (box, values) in boxes.items():
            within(found[name], tuple((0, size) for size in found[name].shape), box).copy_(torch.from_numpy(values))
    return found


def gradient_of_one(learner: LocalLearner, mb, objective=OBJECTIVE) -> dict[str, torch.Tensor]:
    learner.network.grad.zero_()
    learner.network.backward(mb, objective, Tally())
    places = learner._places()
    return {
        name: learner.network.grad[places[name] : places[name] + view.numel()].view(view.shape).clone()
        for name, view in learner.network.views().items()
    }


@pytest.mark.parametrize(("ranks", "tp"), WORLDS)
async def test_ranks_take_the_steps_of_one(open_ranks, make, source, ranks, tp):
    learner, local = open_ranks(ranks, tp), one(make.llama(), source)
    mb = make.microbatch(GROUPS)
    wanted = gradient_of_one(local, mb)
    found = gradient(learner, uneven(make, mb, learner.ranks))
    assert make.distance(found, wanted) < 1e-5
    local.network.grad.zero_()
    scored = (await learner.score(((mb, *[make.slice(mb, 0, 3)] * (learner.ranks - 1)),)))[0]
    alone = (await local.score(((mb,),)))[0][0]
    torch.testing.assert_close(scored[0], alone, rtol=0, atol=3e-5)
    if learner.ranks > 1:
        torch.testing.assert_close(scored[-1], alone[: len(scored[-1])], rtol=0, atol=3e-5)
    for seed in range(3):
        mb = make.microbatch(GROUPS, seed=seed)
        report = await learner.update(uneven(make, mb, learner.ranks), OBJECTIVE)
        wanted_report = await local.update(((mb,),), OBJECTIVE)
        assert report.metrics == pytest.approx(dict(wanted_report.metrics), rel=1e-4)
        assert (report.tokens, report.skipped) == (wanted_report.tokens, False)
    assert make.distance(whole(learner), local.network.views()) < 1e-5


@pytest.mark.parametrize("family", [qwen3, qwen2])
async def test_families_with_head_norms_biases_and_heads_of_their_own(open_ranks, make, tmp_path, family):
    """Their vocabularies are even: embedding and head are cut along them, tied or not."""
    family().save_pretrained(tmp_path / "other")
    learner = open_ranks(4, 2, folder=tmp_path / "other", temperature=0.7)
    network = SimpleNetwork(family(), dtype=torch.float32, temperature=0.7)
    mb = make.microbatch(GROUPS)
    wanted = gradient_of_one(LocalLearner(network, OPTIM, total=8, source=tmp_path / "other"), mb)
    assert make.distance(gradient(learner, uneven(make, mb, 2)), wanted) < 1e-5
    assert learner.layout.dims["model.embed_tokens.weight"] == 0
    local = LocalLearner(network, OPTIM, total=8, source=tmp_path / "other")
    local.network.grad.zero_()
    report, alone = await learner.update(uneven(make, mb, 2), OBJECTIVE), await local.update(((mb,),), OBJECTIVE)
    assert report.metrics == pytest.approx(dict(alone.metrics), rel=1e-4)
    assert make.distance(whole(learner), local.network.views()) < 1e-5


async def test_recomputing_activations_and_head_in_chunks_changes_nothing(open_ranks, make, tmp_path):
    make.llama(vocab_size=98).save_pretrained(source := tmp_path / "even")
    mb = make.microbatch([*GROUPS, (3, (300, 290))])  # over 512 targets: the head runs in two chunks
    wanted = gradient_of_one(one(make.llama(vocab_size=98), source), mb)
    for tp in (1, 2):
        learner = open_ranks(2, tp, folder=source, checkpointing=True)
        rounds = ((make.slice(mb, 0, 5), make.slice(mb, 5, 9)),) if tp == 1 else ((mb,),)
        assert make.distance(gradient(learner, rounds), wanted) < 1e-5


async def test_bfloat16_is_near_and_masters_are_exact(open_ranks, make, source):
    learner = open_ranks(2, dtype="bfloat16")
    mb = make.microbatch(GROUPS)
    wanted = gradient_of_one(one(make.llama(), source), mb)
    found = gradient(learner, uneven(make, mb, 2))
    gap = sum(float((found[n] - wanted[n]).square().sum()) for n in wanted) ** 0.5
    assert gap < 0.2 * sum(float(w.square().sum()) for w in wanted.values()) ** 0.5
    assert make.distance(whole(learner), {n: p.detach() for n, p in make.llama().named_parameters()}) == 0.0
    rounded = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in learner.shapes.items()}
    learner.pull(rounded)
    for name, tensor in make.llama().named_parameters():
        assert torch.equal(rounded[name], tensor.bfloat16())


async def test_clipping_is_by_the_norm_over_all_ranks(open_ranks, make, source):
    learner, local = open_ranks(4, 2), one(make.llama(), source)
    for seed, clip in ((0, 0.5), (1, None), (2, 1e9)):
        mb = make.microbatch(GROUPS, seed=seed)
        report = await learner.update(uneven(make, mb, 2), OBJECTIVE, clip_norm=clip)
        wanted = await local.update(((mb,),), OBJECTIVE, clip_norm=clip)
        assert report.metrics["grad_norm"] == pytest.approx(wanted.metrics["grad_norm"], rel=1e-5)
    assert make.distance(whole(learner), local.network.views()) < 1e-5


async def test_a_non_finite_step_is_skipped_on_every_rank(open_ranks, make, source):
    learner, local = open_ranks(4, 2), one(make.llama(), source)
    before = whole(learner)
    mb = make.microbatch(GROUPS)
    rounds = uneven(make, mb, 2)
    poisoned = dataclasses.replace(rounds[0][1], advantages=rounds[0][1].advantages * float("nan"))
    report = await learner.update(((rounds[0][0], poisoned), *rounds[1:]), OBJECTIVE)
    assert report.skipped and make.distance(whole(learner), before) == 0.0
    bad = dataclasses.replace(mb, advantages=mb.advantages * float("nan"))
    await local.update(((bad,),), OBJECTIVE)
    assert not (await learner.update(rounds, OBJECTIVE)).skipped
    await local.update(((mb,),), OBJECTIVE)
    assert make.distance(whole(learner), local.network.views()) < 1e-5


async def test_updates_without_work(open_ranks, make, source):
    """Nothing at all, or nothing worth training: decay alone, and no rank waits for another."""
    learner, local = open_ranks(2), one(make.llama(), source)
    mb = make.microbatch(GROUPS)
    silent = dataclasses.replace(mb, advantages=torch.zeros_like(mb.advantages))
    empty = make.slice(mb, 0, 0)
    for rounds in ((), ((empty, empty),), ((silent, empty), (empty, silent))):
        report = await learner.update(rounds, OBJECTIVE)
        assert report.tokens == report.forwarded_tokens == 0 and not report.skipped
        await local.update(rounds, OBJECTIVE)
    report = await learner.update(((silent, empty),), CrossEntropy())
    assert report.tokens == int(mb.loss_mask.sum())
    await local.update(((silent,),), CrossEntropy())
    assert make.distance(whole(learner), local.network.views()) < 1e-5


async def test_a_reference_keeps_its_weights(open_ranks, make):
    learner, mb = open_ranks(2), make.microbatch(GROUPS)
    reference, rounds = learner.keep("reference"), ((mb, make.slice(mb, 0, 0)),)
    before = (await learner.score(rounds))[0][0]
    await learner.update(rounds, OBJECTIVE)
    after = (await learner.score(rounds))[0][0]
    assert abs(after - before).max() > 1e-3
    assert ((await reference.score(rounds))[0][0] == before).all()
    assert ((await learner.score(rounds))[0][0] == after).all()


async def test_a_snapshot_is_the_state_of_all_ranks(open_ranks, make):
    learner, batches = open_ranks(2), [make.microbatch(GROUPS, seed=seed) for seed in range(2)]
    await learner.update(uneven(make, batches[0], 2), OBJECTIVE)
    snapshot = learner.snapshot()
    assert len(snapshot.parts) == 2 and snapshot.counters == {"step_count": 1, "applied": 1}
    before = await learner.update(uneven(make, batches[1], 2), OBJECTIVE)
    there = whole(learner)
    learner = open_ranks(2)
    learner.restore(snapshot)
    after = await learner.update(uneven(make, batches[1], 2), OBJECTIVE)
    assert after.metrics == before.metrics
    assert make.distance(whole(learner), there) == 0.0


# ---- checkpoints ---------------------------------------------------------------------------------------------------


async def test_a_checkpoint_goes_on_at_any_world_size(open_ranks, make, source, tmp_path):
    from transformers import AutoModelForCausalLM

    batches = [make.microbatch(GROUPS, seed=seed) for seed in range(2)]
    learner = open_ranks(2)
    await learner.update(uneven(make, batches[0], 2), OBJECTIVE)
    saved = tmp_path / "policy"
    await learner.save(saved)
    assert sum(path.stat().st_size for path in saved.glob("*.safetensors")) == pytest.approx(
        learner.checkpoint_bytes, rel=0.1
    )
    kept = whole(learner)
    theirs = AutoModelForCausalLM.from_pretrained(saved)
    assert make.distance({name: p.detach() for name, p in theirs.named_parameters()}, kept) == 0.0
    await learner.update(uneven(make, batches[1], 2), OBJECTIVE)
    straight = whole(learner)

    for ranks, tp in ((4, 1), (4, 2), (2, 1)):
        other = open_ranks(ranks, tp)
        await other.load(saved)
        assert make.distance(whole(other), kept) == 0.0
        report = await other.update(uneven(make, batches[1], other.ranks), OBJECTIVE)
        assert report.metrics["lr"] == pytest.approx(1e-2)
        assert make.distance(whole(other), straight) < 1e-5
    await other.save(tmp_path / "again")
    await other.load(saved, weights_only=True)
    assert make.distance(whole(other), kept) == 0.0
    fresh = one(make.llama(), source)
    await fresh.load(saved, weights_only=True)
    await fresh.update(((batches[0],),), OBJECTIVE)
    await other.update(uneven(make, batches[0], 2), OBJECTIVE)
    assert make.distance(whole(other), fresh.network.views()) < 1e-5

    weights = FlatWeights.from_folder(source, dtype=torch.float32)
    for network in (SimpleNetwork(make.llama(), dtype=torch.float32), LlamaNetwork(weights)):
        alone = LocalLearner(network, OPTIM, total=8, source=source)
        await alone.load(saved)
        assert make.distance(alone.network.views(), kept) == 0.0
        await alone.update(((batches[1],),), OBJECTIVE)
        assert make.distance(alone.network.views(), straight) < 1e-5


@pytest.mark.parametrize("path", ["simple", "fast"])
async def test_a_checkpoint_of_one_process_goes_on_over_ranks(open_ranks, make, source, tmp_path, path):
    batches = [make.microbatch(GROUPS, seed=seed) for seed in range(2)]
    weights = FlatWeights.from_folder(source, dtype=torch.float32)
    network = LlamaNetwork(weights) if path == "fast" else SimpleNetwork(make.llama(), dtype=torch.float32)
    alone = LocalLearner(network, OPTIM, total=8, source=source)
    await alone.update(((batches[0],),), OBJECTIVE)
    await alone.save(tmp_path / "policy")
    await alone.update(((batches[1],),), OBJECTIVE)
    learner = open_ranks(4, 2)
    await learner.load(tmp_path / "policy")
    await learner.update(uneven(make, batches[1], 2), OBJECTIVE)
    assert make.distance(whole(learner), alone.network.views()) < 1e-5


async def test_checkpoints_of_ranks_are_whole_and_exported(open_ranks, make, tmp_path):
    learner = open_ranks(2)
    await learner.update(uneven(make, make.microbatch(GROUPS), 2), OBJECTIVE)
    ref = await checkpoint.FolderCheckpoints(tmp_path / "c").save(step=1, learners={"policy": learner}, source={})
    folder = tmp_path / "c" / "step-000001"
    assert checkpoint.damage(folder) == "" and ref.step == 1
    checkpoint.export(folder, tmp_path / "out")
    weights = FlatWeights.from_folder(tmp_path / "out", dtype=torch.float32)
    for name, tensor in whole(learner).items():
        assert torch.equal(weights.views(weights.master)[name], tensor.bfloat16().float())


def test_what_is_staged_is_written_as_it_was(make, source, tmp_path):
    """The writer is held back until an update has changed weights, moments and counters."""
    spec = RankSpec(folder=source, ranks=1, optim=OPTIM, total=8, dtype="float32", rendezvous=f"file://{tmp_path}/meet")
    rank, mb, go_on = Rank(spec), to_columns(make.microbatch(GROUPS)), threading.Event()
    try:
        rank.update([mb], OBJECTIVE)
        before = {name: tensor.clone() for name, tensor in rank.network.slices().items()}
        moment = {name: tensor.clone() for name, tensor in rank.optimizer.moments()["exp_avg"].items()}
        shapes = rank.network.shapes
        named = {f"{m}.{name}": shape for m in ("exp_avg", "exp_avg_sq") for name, shape in shapes.items()}
        weights, moments = tmp_path / "weights.safetensors", tmp_path / "moments.safetensors"
        rank.writer.submit(go_on.wait)
        rank.stage([
            (weights, "weights", lay_out(weights, shapes, dtype=torch.float32)),
            (moments, "moments", lay_out(moments, named, dtype=torch.float32)),
        ])  # fmt: skip
        rank.update([mb], OBJECTIVE)
        assert make.distance(rank.network.slices(), before) > 1e-3 and not rank.staged()
        go_on.set()
        while not rank.staged():
            pass
        assert make.distance(load_tensors(weights, dtype=torch.float32), before) == 0.0
        written = load_tensors(moments, dtype=torch.float32)
        assert make.distance({name: written[f"exp_avg.{name}"] for name in moment}, moment) == 0.0
    finally:
        go_on.set()
        rank.close()


async def test_a_rank_killed_while_a_checkpoint_is_written_leaves_the_one_before(open_ranks, group, make, tmp_path):
    learner, store = open_ranks(2), checkpoint.FolderCheckpoints(tmp_path / "c")
    await store.save(step=1, learners={"policy": learner}, source={"at": 1})
    rounds = uneven(make, make.microbatch(GROUPS), 2)
    writing = await store.begin(step=2, learners={"policy": learner}, source={"at": 2})
    assert not writing.done()
    await learner.update(rounds, OBJECTIVE)
    assert (await writing).step == 2 and checkpoint.latest(tmp_path / "c").step == 2
    writing = await store.begin(step=3, learners={"policy": learner}, source={"at": 3})
    os.kill(group().pids[1], signal.SIGKILL)
    with pytest.raises(RunFailed, match="rank 1 was killed by SIGKILL"):
        await writing
    said: list[str] = []
    found = checkpoint.latest(tmp_path / "c", report=said.append)
    assert (found.step, said) == (2, []) and checkpoint.state_of(Path(found.path)) == {"at": 2}


async def test_another_model_is_refused_by_every_rank_and_the_group_goes_on(open_ranks, make, tmp_path):
    make.llama(intermediate_size=64).save_pretrained(tmp_path / "other")
    learner = open_ranks(2)
    with pytest.raises(ModelError, match=r"got shape \[64, 48\], this model has \[80, 48\]"):
        await learner.load(tmp_path / "other")
    assert not (await learner.update(uneven(make, make.microbatch(GROUPS), 2), OBJECTIVE)).skipped


# ---- from layout to layout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "tp", "first", "fsdp_to", "tp_to"), [(4, 2, 0, 1, 2), (2, 1, 1, 1, 3), (4, 1, 2, 1, 1)]
)
async def test_slices_travel_between_layouts(open_ranks, make, ranks, tp, first, fsdp_to, tp_to):
    """Colocated, overlapping and apart, over gloo: what arrives is what direct slicing gives."""
    learner = open_ranks(4, tp)
    target = Layout(fsdp=fsdp_to, tp=tp_to, first=first % (5 - tp_to), dims=sampler_dims(learner.shapes))
    largest = 2000
    found = learner.wait(learner._everywhere, "carried", target, "bfloat16", largest)
    model = dict(make.llama().named_parameters())
    for rank, (tensors, moved) in enumerate(found):
        assert set(tensors) == (set(learner.shapes) if rank in target.ranks else set())
        assert moved.peak_bytes <= largest
        for name, tensor in tensors.items():
            box = target.box(name, learner.shapes[name], rank)
            wanted = within(model[name], tuple((0, n) for n in model[name].shape), box)
            assert torch.equal(torch.from_numpy(tensor), wanted.bfloat16().float())
    sent, received = sum(m.bytes_sent for _, m in found), sum(m.bytes_received for _, m in found)
    assert sent == received > 0


def sampler_dims(shapes):
    """As a tensor-parallel sampler cuts: outputs of q, k, v, gate, up and the vocabulary, inputs of o and down."""
    cut = {
        "o_proj": 1,
        "down_proj": 1,
        "q_proj": 0,
        "k_proj": 0,
        "v_proj": 0,
        "gate_proj": 0,
        "up_proj": 0,
        "embed_tokens": 0,
    }
    return {name: dim for name in shapes for part, dim in cut.items() if f".{part}." in name}


# ---- refusals and faults -------------------------------------------------------------------------------------------


def test_models_that_cannot_be_cut_are_refused(open_ranks, make, group, tmp_path):
    make.llama(num_attention_heads=3, num_key_value_heads=3).save_pretrained(tmp_path / "odd")
    with pytest.raises(ConfigError, match="num_attention_heads is 3, which 2 ranks cannot share evenly"):
        open_ranks(2, 2, folder=tmp_path / "odd")
    assert open_ranks(2, folder=tmp_path / "odd").ranks == 2  # the processes were left as they were


async def test_a_rank_killed_in_an_update_ends_it(open_ranks, group, make, tmp_path):
    learner, mb = open_ranks(2), make.microbatch(GROUPS)
    begun = group().moves
    update = asyncio.create_task(learner.update(((mb, mb),) * 2000, OBJECTIVE))
    while group().moves == begun:
        await asyncio.sleep(0.01)
    assert not update.done()
    os.kill(group().pids[1], signal.SIGKILL)
    async with asyncio.timeout(120):
        with pytest.raises(RunFailed, match="rank 1 was killed by SIGKILL during update"):
            await update
        with pytest.raises(RunFailed, match="it goes on from its last checkpoint"):
            await learner.save(tmp_path / "late")


class Stuck:
    """Two ranks, of which one never writes what it was given."""

    failed, moves = "", 0

    def meeting(self):
        return ""

    def call(self, method, arguments):
        return {"open": [({"w": (4, 2)}, Layout(fsdp=2)), None], "staged": [True, False]}.get(method, [{}, {}])

    def close(self):
        pass


async def test_a_rank_that_never_writes_a_checkpoint_is_named(tmp_path, monkeypatch, source):
    monkeypatch.setattr(learning, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(learning, "POLL_SECONDS", 0.0)
    spec = RankSpec(rank=0, ranks=2, tp=1, folder=source, rendezvous="", optim=OPTIM, total=1)
    learner = FsdpLearner(spec, Stuck())
    settled = await learner.stage(tmp_path)
    async with asyncio.timeout(120):
        with pytest.raises(RunFailed, match="rank 1 of 2 did not write the checkpoint within 0 s") as caught:
            await settled
    assert caught.value.where == str(tmp_path) and "--resume" in caught.value.fix
    learner.leave()


# ---- critics -------------------------------------------------------------------------------------------------------


def judged(make, **options):
    mb = make.microbatch(GROUPS, **options)
    draw, on = torch.Generator().manual_seed(5), mb.loss_mask.float()
    columns = {name: torch.randn(len(on), generator=draw) * on for name in ("values", "returns")}
    return dataclasses.replace(mb, **columns)


@pytest.mark.parametrize(("ranks", "tp"), [(1, 1), (2, 1), (4, 2)])
@pytest.mark.parametrize("vocabulary", [97, 98])
async def test_a_critic_learns_beside_the_policy_as_in_one_process(open_ranks, make, tmp_path, ranks, tp, vocabulary):
    """It begins with the policy as it is; their updates take turns and do not touch each other; it is saved and loaded."""
    make.llama(vocab_size=vocabulary).save_pretrained(source := tmp_path / "model")
    policy, batches = open_ranks(ranks, tp, folder=source), [judged(make, seed=seed) for seed in range(3)]
    await policy.update(uneven(make, batches[0], policy.ranks), OBJECTIVE)
    begun = whole(policy)
    critic, optim = policy.critic(CALM, 8), ValueLoss(0.5)
    network = SimpleValueNetwork(make.llama(vocab_size=vocabulary), dtype=torch.float32)
    alone = LocalLearner(network, CALM, total=8, source=source, role="critic")
    for name, view in network.views().items():
        view.copy_(begun.get(name, torch.zeros(())))
    assert make.distance(whole(critic), network.views()) == 0.0
    assert not (await critic.score(((batches[0], *[make.slice(batches[0], 0, 3)] * (critic.ranks - 1)),)))[0][0].any()
    for mb in batches:
        report = await critic.update(uneven(make, mb, critic.ranks), optim)
        wanted = await alone.update(((mb,),), optim)
        assert report.role == "critic" and report.metrics == pytest.approx(dict(wanted.metrics), rel=1e-4, abs=1e-9)
    assert make.distance(whole(critic), network.views()) < 5e-5  # Adam's first steps make gradients near 0 large
    assert make.distance(whole(policy), begun) == 0.0
    await critic.save(tmp_path / "critic")
    await alone.load(tmp_path / "critic")
    wanted = gradient_of_one(alone, batches[1], optim)
    assert make.distance(gradient(critic, uneven(make, batches[1], critic.ranks), optim), wanted) < 1e-5
    network.grad.zero_()
    await critic.update(uneven(make, batches[0], critic.ranks), optim)
    straight = whole(critic)
    await critic.load(tmp_path / "critic")
    await critic.update(uneven(make, batches[0], critic.ranks), optim)
    assert make.distance(whole(critic), straight) == 0.0
    await alone.update(((batches[0],),), optim)
    assert make.distance(straight, network.views()) < 5e-5


async def test_the_head_of_a_critic_is_never_rounded(open_ranks, make):
    critic, mb = open_ranks(2, dtype="bfloat16").critic(OPTIM, 8), judged(make)
    await critic.update(((mb, make.slice(mb, 0, 0)),), ValueLoss())
    head = whole(critic)["score.weight"]
    assert head.any() and not torch.equal(head, head.bfloat16().float())
    assert (await critic.score(((mb, mb),)))[0][0].any()


# ---- adapters ------------------------------------------------------------------------------------------------------

ADAPTERS = LoRA(rank=3, alpha=7.5)


def adapted(model, source) -> lora.LoRALearner:
    layout = lora.layout(source, ADAPTERS)
    network = SimpleLoRA(model, layout, dtype=torch.float32)
    return lora.LoRALearner(network, OPTIM, total=8, source=source, layout=layout, seed=5)


def adapters_of(learner: lora.LoRALearner) -> dict[str, torch.Tensor]:
    pairs = learner.network.pairs().items()
    return {name: tensor for layer, pair in pairs for name, tensor in zip(names_of(layer), pair, strict=True)}


@pytest.mark.parametrize("ranks", [1, 2, 4])
async def test_adapters_learn_over_ranks_as_in_one_process(open_ranks, make, tmp_path, ranks):
    """The model stays as it is, its reference costs nothing, and what is published is merged."""
    calm = make.llama(initializer_range=0.1)
    calm.save_pretrained(source := tmp_path / "model")
    learner = open_ranks(ranks, folder=source, adapters=lora.layout(source, ADAPTERS), seed=5)
    reference, alone = learner.keep("reference"), adapted(make.llama(initializer_range=0.1), source)
    assert make.distance(whole(learner), {name: p.detach() for name, p in calm.named_parameters()}) == 0.0
    for seed in range(3):
        mb = make.microbatch(GROUPS, seed=seed)
        report = await learner.update(uneven(make, mb, ranks), OBJECTIVE)
        wanted = await alone.update(((mb,),), OBJECTIVE)
        assert report.metrics == pytest.approx(dict(wanted.metrics), rel=1e-3)
    assert make.distance(whole(learner), dict(alone.network.views())) < 1e-5
    rounds = ((mb, *[make.slice(mb, 0, 0)] * (ranks - 1)),)
    before, bare = (await learner.score(rounds))[0][0], (await BareScorer(alone.network).score(((mb,),)))[0][0]
    torch.testing.assert_close((await reference.score(rounds))[0][0], bare, rtol=0, atol=3e-5)
    assert ((await learner.score(rounds))[0][0] == before).all() and abs(before - bare).max() > 1e-3

    await alone.save(tmp_path / "one")
    await learner.load(tmp_path / "one")
    alone.network.grad.zero_()
    alone.network.backward(mb, OBJECTIVE, Tally())
    wanted = {name: p.grad.clone() for name, p in adapters_of(alone).items()}
    found = {name: torch.full(shape, torch.nan) for name, shape in learner.learned.items()}
    for boxes in learner.wait(learner._dealt, "gradients", uneven(make, mb, ranks), OBJECTIVE):
        for name, (box, values) in boxes.items():
            within(found[name], tuple((0, size) for size in found[name].shape), box).copy_(torch.from_numpy(values))
    assert make.distance(found, wanted) < 1e-5


async def test_adapters_go_on_at_any_number_of_ranks(open_ranks, make, tmp_path):
    make.llama(initializer_range=0.1).save_pretrained(source := tmp_path / "model")
    layout, batches = lora.layout(source, ADAPTERS), [make.microbatch(GROUPS, seed=seed) for seed in range(2)]
    learner = open_ranks(2, folder=source, adapters=layout, seed=5)
    await learner.update(uneven(make, batches[0], 2), OBJECTIVE)
    await learner.save(tmp_path / "two")
    assert sum(path.stat().st_size for path in (tmp_path / "two").glob("*.safetensors")) == pytest.approx(
        learner.checkpoint_bytes, rel=0.1
    )
    saved = whole(learner)
    await learner.update(uneven(make, batches[1], 2), OBJECTIVE)
    straight = whole(learner)
    alone = adapted(make.llama(initializer_range=0.1), source)
    await alone.load(tmp_path / "two")
    assert make.distance(dict(alone.network.views()), saved) < 1e-6
    await alone.save(tmp_path / "one")
    await alone.update(((batches[1],),), OBJECTIVE)
    assert make.distance(dict(alone.network.views()), straight) < 1e-5
    other = open_ranks(4, folder=source, adapters=layout, seed=6)
    await other.load(tmp_path / "one")
    await other.update(uneven(make, batches[1], 4), OBJECTIVE)
    assert make.distance(whole(other), straight) < 1e-5
    await other.load(tmp_path / "two", weights_only=True)  # the next stage: merged, with adapters of its own
    assert make.distance(whole(other), saved) == 0.0
    with pytest.raises(RunFailed, match="the adapter of this checkpoint belongs to another model"):
        await other.load(tmp_path / "one")
    critic = other.critic(CALM, 8)
    begun = whole(critic)
    assert not begun.pop("score.weight").any() and make.distance(begun, saved) == 0.0
