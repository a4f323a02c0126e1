"""An engine whose learner is cut over processes of this machine; the sampler stays here and pulls the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jurat.engine import threads
from jurat.engine.decoding import Decoder, PullingDecoder
from jurat.engine.fsdp.learner import FsdpLearner
from jurat.engine.fsdp.lora import FsdpLoRALearner
from jurat.engine.fsdp.processes import Processes
from jurat.engine.fsdp.worker import RankSpec
from jurat.engine.llama.sampler import LlamaDecoder
from jurat.engine.llama.weights import FlatWeights, shape_of
from jurat.engine.lora import Layout
from jurat.engine.simple.sampler import SimpleDecoder
from jurat.platform.recipe import Engine, Optim, SamplingPart

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def start(
    folder: Path,
    engine: Engine,
    optim: Optim,
    sampling: SamplingPart,
    *,
    total_steps: int,
    count: int,
    adapters: Layout | None,
    seed: int,
) -> FsdpLearner:
    """The learner and its processes, which share ``count`` threads."""
    each = max(1, count // engine.ranks)
    spec = RankSpec(
        folder=folder, ranks=engine.ranks, tp=engine.tp, device=engine.device.partition(":")[0], dtype=engine.dtype,
        temperature=sampling.temperature, checkpointing=engine.activation_checkpointing, offload=engine.offload,
        fused=engine.kernels == "auto", threads=each, optim=optim, total=total_steps, adapters=adapters, seed=seed,
    )  # fmt: skip
    env = {**threads.recommended_env(), "OMP_NUM_THREADS": str(each), "TOKENIZERS_PARALLELISM": "false"}
    processes = Processes(engine.ranks, preload=engine.device == "cpu", env=env)
    try:
        return FsdpLoRALearner(spec, processes) if adapters else FsdpLearner(spec, processes)
    except BaseException:
        processes.close()
        raise


def fast_decoder(config: PretrainedConfig, engine: Engine, learner: FsdpLearner) -> Decoder:
    """The sampler's side: its working copy is pulled; of the master, which nobody learns here, only the norms."""
    weights = FlatWeights(shape_of(config), dtype=getattr(torch, engine.dtype), device=engine.device, drawn=True)
    into = weights.views(weights.working) | weights.norms()
    return PullingDecoder(LlamaDecoder(weights, native=engine.kernels == "auto"), lambda: learner.pull(into))


def simple_decoder(model: PreTrainedModel, learner: FsdpLearner) -> Decoder:
    own = dict(model.named_parameters())
    into = {name: own[name].detach() for name in learner.shapes}
    return PullingDecoder(SimpleDecoder(model), lambda: learner.pull(into))
