"""The engine in this process: tokenizer, sampler, learner and the link between them, from a model folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from jurat.engine import compute, threads
from jurat.engine.batching import BatchedSampler
from jurat.engine.decoding import Decoder, Decoding, PullingDecoder
from jurat.engine.learner import LocalLearner, LocalScorer, Network, StagingLearner
from jurat.engine.logprobs import liger_version
from jurat.engine.lora import AdaptedNetwork, Layout, LoRALearner, layout
from jurat.engine.meter import meter
from jurat.engine.tokenizer import HFTokenizer
from jurat.engine.vllm import settings
from jurat.platform.errors import ConfigError, ModelError
from jurat.platform.memory import History
from jurat.platform.ports import Scorer
from jurat.platform.recipe import Engine, LoRA, Optim, SamplingPart

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from jurat.engine.fsdp.learner import FsdpLearner
    from jurat.engine.vllm.remote import ServedSampler
    from jurat.engine.vllm.several import ServedSamplers

    LocalSampler = BatchedSampler | ServedSampler | ServedSamplers


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    tokenizer: HFTokenizer
    sampler: LocalSampler
    learner: LocalLearner | FsdpLearner
    link: LocalSampler
    """The sampler itself: what it has to do at a publish depends on its own copies."""
    reference: Callable[[], Scorer]
    """Makes a scorer with a copy of the weights as they are now."""
    critic: Callable[[Optim, int], LocalLearner | FsdpLearner]
    """(settings, optimiser steps) -> a value model that begins with the policy's weights as they are now."""
    info: Mapping[str, Any]
    """For doctor and the run record: path and why, threads of sampler and learner, dtype, parameters."""

    def memory(self) -> History:
        """Of this process and, where there are any, of the learner's ranks."""
        elsewhere = None if isinstance(self.learner, LocalLearner) else self.learner.peaks
        return History(meter(self.info["device"]), elsewhere)

    def close(self) -> None:
        self.sampler.close()
        if not isinstance(self.learner, LocalLearner):
            self.learner.close()


def build(
    folder: Path,
    engine: Engine,
    optim: Optim,
    sampling: SamplingPart,
    *,
    total_steps: int,
    lora: LoRA | None = None,
    seed: int = 0,
) -> LocalEngine:
    """Load a checked model folder. Raises ModelError or ConfigError. ``seed`` is that of adapters.

    Sampler and learner share the working copy of the weights and one thread, or the sampler keeps a copy in its own format
    that ``link.publish`` makes anew. With ``engine.max_lag`` the sampler always has its own, and a thread: they overlap.
    """
    from transformers import AutoConfig

    refuse(engine)
    count = threads.choose_threads(engine.threads)
    lane = compute.MAIN
    if engine.max_lag:
        lane, count = compute.Lane("sampler"), count if engine.threads else max(1, count // 2)
        lane.call(threads.set_up, count)
    threads.set_up(count)
    config = AutoConfig.from_pretrained(folder)
    reason = _why_simple(config, engine)
    if engine.ranks > 1:
        own = engine.model_copy(update={"threads": count})
        made = sharded(folder, own, optim, sampling, total_steps=total_steps, lora=lora, seed=seed)
        return _sampled(made, folder, engine, sampling, config, lane, simple=reason)
    tokenizer = HFTokenizer(folder)
    make = _simple if reason else _fast
    compute.call(threads.set_up, count)
    adapters = layout(folder, lora) if lora else None
    network, decoder, reference, values = compute.call(make, folder, engine, sampling, adapters)
    if engine.sampler == "vllm":
        shapes = {name: tuple(view.shape) for name, view in network.views().items()}
        fill = partial(_copy, network)
        sampler, by = _vllm(folder, engine, sampling, config, tokenizer.max_length, lane, shapes, fill, network.views)
    else:
        sampler, by = _own(lane.call(decoder), sampling, lane)
    learner: LocalLearner
    if adapters:
        adapted = cast(AdaptedNetwork, network)
        learner = compute.call(
            LoRALearner, adapted, optim, total=total_steps, source=folder, layout=adapters, seed=seed
        )
    else:
        learner = compute.call(_learner_of(network), network, optim, total=total_steps, source=folder)
    info = {
        "path": "simple" if reason else "fast",
        "why": reason,
        "model": config.model_type,
        "parameters": adapters.parameters if adapters else network.master.numel(),
        "trainable": network.master.numel(),
        "lora": lora.model_dump() if lora else None,
        "dtype": engine.dtype,
        **by,
        **({"head": network.chunked or f"liger {liger_version()}"} if hasattr(network, "chunked") else {}),
        "device": engine.device,
        "threads": {"sampler": count, "learner": count},
        "capability": torch.backends.cpu.get_cpu_capability(),
        "eos_ids": list(tokenizer.eos_ids),
        "max_length": tokenizer.max_length,
    }
    return LocalEngine(
        tokenizer=tokenizer, sampler=sampler, learner=learner, link=sampler,
        reference=lambda: compute.call(reference),
        critic=lambda optim, total: compute.call(_critic, values, network, optim, total, folder), info=info,
    )  # fmt: skip


def refuse(engine: Engine) -> None:
    """Raise ConfigError for what this machine has not: the device, a GPU for each rank, vLLM. Keys that do not go together are
    refused before (trainers)."""
    if engine.sampler == "vllm" and not engine.vllm_url:
        settings.require()
    try:
        device = torch.device(engine.device)
        if device.type != "cuda":  # whose memory a process should not take just to ask
            torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        lines = str(error).splitlines()
        raise ConfigError(f"no device {engine.device!r} here: {lines[0] if lines else type(error).__name__}",
                          where="engine.device", fix="set engine.device: cpu, or cuda on a machine with a GPU") from None  # fmt: skip
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and count <= (device.index or 0):
        there = f"there are {count} GPUs here" if torch.version.cuda else "torch is built without CUDA here"
        raise ConfigError(f"engine.device is {engine.device}, and {there}", where="engine.device",
                          fix="set engine.device: cpu, or run it where the GPU is (on Ray: in a pool with gpus)")  # fmt: skip
    if engine.ranks > 1 and engine.device.startswith("cuda") and torch.cuda.device_count() < engine.ranks:
        raise ConfigError(f"{engine.ranks} ranks need a GPU each, this machine has {torch.cuda.device_count()}",
                          where="engine.ranks", fix="lower engine.ranks")  # fmt: skip


def refuse_model(engine: Engine, folder: Path) -> None:
    """Raise ConfigError where the model of a checked folder does not let its layers be shared by ``engine.tp`` ranks, or the fast
    path is asked for and does not fit."""
    from transformers import AutoConfig

    if engine.path != "fast" and engine.tp == 1:
        return
    config = AutoConfig.from_pretrained(folder)
    _why_simple(config, engine)
    if engine.tp > 1:
        from jurat.engine.fsdp.network import refuse_tp

        refuse_tp(config, engine.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """A learner over several ranks, without a sampler."""

    tokenizer: HFTokenizer
    learner: FsdpLearner
    info: Mapping[str, Any]

    def critic(self, optim: Optim, total_steps: int) -> FsdpLearner:
        return self.learner.critic(optim, total_steps)

    def close(self) -> None:
        self.learner.close()


def sharded(
    folder: Path,
    engine: Engine,
    optim: Optim,
    sampling: SamplingPart,
    *,
    total_steps: int,
    lora: LoRA | None = None,
    seed: int = 0,
) -> Sharded:
    """A learner cut over processes of this machine. Raises ModelError or ConfigError."""
    from transformers import AutoConfig

    from jurat.engine.fsdp import home

    refuse(engine)
    count = threads.choose_threads(engine.threads)
    tokenizer = HFTokenizer(folder)
    adapters = layout(folder, lora) if lora else None
    learner = home.start(
        folder, engine, optim, sampling, total_steps=total_steps, count=count, adapters=adapters, seed=seed
    )
    info = {
        "path": "fsdp", "model": AutoConfig.from_pretrained(folder).model_type, "parameters": learner.parameters,
        "trainable": sum(map(prod, learner.learned.values())), "lora": lora.model_dump() if lora else None,
        "dtype": engine.dtype, "device": engine.device, "threads": count, "ranks": engine.ranks, "tp": engine.tp,
        "eos_ids": list(tokenizer.eos_ids), "max_length": tokenizer.max_length,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip
    return Sharded(tokenizer=tokenizer, learner=learner, info=info)


def _sampled(
    made: Sharded, folder: Path, engine: Engine, sampling: SamplingPart, config: PretrainedConfig,
    lane: compute.Lane, *, simple: str,
) -> LocalEngine:  # fmt: skip
    """A sampler, on either path, in this process, which pulls the weights of the ranks."""
    from jurat.engine.fsdp import home

    learner = made.learner
    count = made.info["threads"]
    compute.call(threads.set_up, count)
    try:
        if engine.sampler == "vllm":
            sampler, by = _vllm(
                folder, engine, sampling, config, made.tokenizer.max_length, lane, learner.shapes, learner.pull
            )
        elif simple:
            model = lane.call(_load, folder, getattr(torch, engine.dtype), engine.device)
            sampler, by = _own(lane.call(home.simple_decoder, model, learner), sampling, lane)
        else:
            sampler, by = _own(lane.call(home.fast_decoder, config, engine, learner), sampling, lane)
    except BaseException:
        made.close()
        raise

    return LocalEngine(
        tokenizer=made.tokenizer, sampler=sampler, learner=learner, link=sampler,
        reference=lambda: learner.keep("reference"), critic=made.critic,
        info={**made.info, "why": simple, **by, "threads": {"sampler": count, "learner": count}},
    )  # fmt: skip


def _why_simple(config: PretrainedConfig, engine: Engine) -> str:
    """'' for the fast path, else why not. Raises ConfigError if the fast path is asked for and does not fit."""
    from jurat.engine.llama.weights import fits

    if engine.path == "simple":
        return "engine.path is simple"
    if engine.compile:
        return "engine.compile compiles the transformers model"
    reason = fits(config)
    if reason and engine.path == "fast":
        raise ConfigError(f"the fast path does not cover this model: {reason}", where="engine.path",
                          fix="set engine.path: auto or simple")  # fmt: skip
    return reason


def _critic(make: Callable[[], Network], policy: Network, optim: Optim, total_steps: int, source: Path) -> LocalLearner:
    network = make()
    own = network.views()
    with torch.no_grad():
        for name, view in policy.views().items():
            if name in own:
                own[name].copy_(view)
    network.refresh()
    return _learner_of(network)(network, optim, total=total_steps, source=source, role="critic")


def _learner_of(network: Network) -> type[LocalLearner]:
    """On a GPU checkpoints are written while training goes on; on a CPU the copy would take the memory that is scarce."""
    return StagingLearner if network.master.is_cuda else LocalLearner


def _own(decoder: Decoder, sampling: SamplingPart, lane: compute.Lane) -> tuple[LocalSampler, Mapping[str, str]]:
    rows = Decoding(decoder, max_concurrent=sampling.max_concurrent)
    return BatchedSampler(rows, lane), {"sampler": "own", "kernels": decoder.kernels}


def _vllm(
    folder: Path, engine: Engine, sampling: SamplingPart, config: PretrainedConfig, longest: int,
    lane: compute.Lane, shapes: Mapping[str, Sequence[int]], fill: Callable[[Mapping[str, Tensor]], object],
    views: Callable[[], Mapping[str, Tensor]] | None = None,
) -> tuple[LocalSampler, Mapping[str, str]]:  # fmt: skip
    """The sampler of a vLLM engine, here or at a URL, and who computes. ``fill`` copies the learner's weights into tensors of
    these names and shapes; ``views``: the weights themselves, where they lie in this process."""
    dtype = getattr(torch, engine.dtype)
    if engine.vllm_url:
        served = _served(engine, sampling, config, longest, shapes, fill)
        return served, {"sampler": f"vllm {served.hello.vllm} at {served.url}", "kernels": "vllm"}
    from jurat.engine.vllm.sampler import VllmRows

    def filled() -> Mapping[str, Tensor]:
        whole = {name: torch.empty(*shape, dtype=dtype) for name, shape in shapes.items()}
        fill(whole)
        return whole

    made = lane.call(settings.start, folder, engine, sampling)
    awake = settings.why_awake(engine)
    rows = VllmRows(made, max_length=longest, dtype=dtype, source=views or filled, sleeps=not awake)
    asleep = {"sleep": awake or "while the learner learns"} if engine.sleeps else {}
    return BatchedSampler(rows, lane), {"sampler": f"vllm {settings.version()}", "kernels": "vllm", **asleep}


def _served(
    engine: Engine, sampling: SamplingPart, config: PretrainedConfig, longest: int,
    shapes: Mapping[str, Sequence[int]], fill: Callable[[Mapping[str, Tensor]], object],
) -> ServedSampler | ServedSamplers:  # fmt: skip
    """Of the servers at ``engine.vllm_urls``, which are given the same weights."""
    from jurat.engine.vllm.remote import ServedSampler, Weights
    from jurat.engine.vllm.several import ServedSamplers

    model = json.loads(config.get_text_config().to_json_string(use_diff=False))
    weights, made = Weights(shapes, getattr(torch, engine.dtype), fill), list[ServedSampler]()
    try:
        for url in engine.vllm_urls:
            made.append(ServedSampler(
                url, weights, model=model, dtype=engine.dtype, max_length=longest,
                max_concurrent=sampling.max_concurrent, seconds=engine.hang_seconds,
            ))  # fmt: skip
    except BaseException:
        for each in made:
            each.close()
        raise
    return made[0] if len(made) == 1 else ServedSamplers(made, weights)


@torch.no_grad()
def _copy(network: Network, into: Mapping[str, Tensor]) -> None:
    for name, view in network.views().items():
        into[name].copy_(view)


Made = tuple[Network, Callable[[], Decoder], Callable[[], Scorer], Callable[[], Network]]
"""The policy, and what makes a decoder on its weights, a copy that scores and a value model with a zero head."""


def _fast(folder: Path, engine: Engine, sampling: SamplingPart, adapters: Layout | None) -> Made:
    from jurat.engine.llama.learner import LlamaNetwork
    from jurat.engine.llama.sampler import LlamaDecoder
    from jurat.engine.llama.weights import FlatWeights

    weights = FlatWeights.from_folder(folder, dtype=getattr(torch, engine.dtype), device=engine.device)

    def network(of: FlatWeights) -> LlamaNetwork:
        return LlamaNetwork(of, temperature=sampling.temperature, checkpointing=engine.activation_checkpointing)

    def decoder(of: FlatWeights) -> Decoder:
        native = engine.kernels == "auto"
        if not engine.max_lag:
            return LlamaDecoder(of, native=native)
        own = FlatWeights(of.shape, dtype=of.dtype, device=engine.device, drawn=True)
        return PullingDecoder(LlamaDecoder(own, native=native), partial(own.take, of))

    def values() -> LlamaNetwork:
        shape = replace(weights.shape, values=True)
        return network(FlatWeights(shape, dtype=weights.dtype, device=engine.device))

    if adapters:
        from jurat.engine.llama.lora import LlamaLoRA

        adapted = LlamaLoRA(
            weights, adapters, temperature=sampling.temperature, checkpointing=engine.activation_checkpointing
        )
        return adapted, partial(decoder, adapted.weights), lambda: LocalScorer(network(adapted.weights.apart())), values
    return network(weights), partial(decoder, weights), lambda: LocalScorer(network(weights.copy())), values


def _simple(folder: Path, engine: Engine, sampling: SamplingPart, adapters: Layout | None) -> Made:
    from jurat.engine.simple.learner import SimpleNetwork, SimpleValueNetwork, compile_layers
    from jurat.engine.simple.sampler import SimpleDecoder

    dtype = getattr(torch, engine.dtype)
    learning = _load(folder, torch.float32, engine.device)
    make: Callable[..., SimpleNetwork] = SimpleNetwork
    if adapters:
        from jurat.engine.simple.lora import BareScorer, SimpleLoRA

        make = partial(SimpleLoRA, layout=adapters)
    network = make(
        learning, dtype=dtype, temperature=sampling.temperature, checkpointing=engine.activation_checkpointing,
        fused=engine.kernels == "auto",
    )  # fmt: skip
    if engine.compile:
        compile_layers(learning)

    def decoder() -> Decoder:
        if dtype == torch.float32 and not engine.max_lag and not engine.compile:
            return SimpleDecoder(learning)
        model = _load(folder, dtype, engine.device)
        return PullingDecoder(SimpleDecoder(model), partial(_copy, network, model.state_dict()))

    def reference() -> Scorer:
        if adapters:
            return BareScorer(network)
        frozen = SimpleNetwork(
            _load(folder, torch.float32, engine.device), dtype=dtype, temperature=sampling.temperature,
            fused=network.fused,
        )  # fmt: skip
        with torch.no_grad():
            frozen.master.copy_(network.master)
        return LocalScorer(frozen)

    def values() -> SimpleValueNetwork:
        model = _load(folder, torch.float32, engine.device)
        network = SimpleValueNetwork(model, dtype=dtype, checkpointing=engine.activation_checkpointing)
        if engine.compile:
            compile_layers(model)
        return network

    return network, decoder, reference, values


def _load(folder: Path, dtype: torch.dtype, device: str) -> PreTrainedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        kind = json.loads((folder / "config.json").read_text()).get("model_type")
        raise ModelError(
            f"transformers cannot load this {kind!r} model: {str(error).splitlines()[0]}",
            where=str(folder),
            fix="check that the folder is whole and its architecture is one that transformers knows",
        ) from error
    return model.to(device)
