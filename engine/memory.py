"""How much memory a recipe needs, by process and by part, before any of it is taken: no torch, no weights, ``config.json``
alone.

What is held from start to end (weights, gradients, moments) is added to the most that one phase takes on top: sampling, or an
update. Sizes are bounds by what the recipe permits (prompts of ``prompt_tokens``, answers of ``max_new_tokens``, full
microbatches), not means; ``docs/memory.md`` compares them with what was measured.

Axes: P parameters, H hidden, D head size, J heads (query, key, value), FF inner, V vocabulary, R rows (tokens run over).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jurat.engine.ray import REPLAYED
from jurat.engine.sizes import Sizes, sizes_of
from jurat.platform.errors import ConfigError, ModelError
from jurat.platform.recipe import DPO, KTO, SFT, Engine, LoRA, PolicyGradient, Recipe

GIB, MIB = 1 << 30, 1 << 20
FAST = ("llama", "mistral")
"""Families of ``engine/llama``; the others run through transformers."""
FAMILIES = (*FAST, "qwen2", "qwen3")
PROCESS = 450 * MIB
"""Python, torch, transformers and the rest of us in one process."""
VLLM = 900 * MIB
"""vLLM's imports and buffers beside its weights and its cache."""
CONTEXT = 600 * MIB
"""What CUDA and its libraries take of a GPU for a process."""
CHUNK, CHUNK_SIMPLE, BLOCK = 1024, 512, 16
"""Rows of logits at once: of ``llama/head.py``, of ``simple/learner.py``, and in float32."""
SCORES = 1 << 23
"""Attention scores at once: ``llama/attention.py``."""
OWN_STEP = 16
"""Keys and values of a row grow to this many tokens, then double: ``llama/sampler.py``."""
RECORDED = 40
"""Bytes that a microbatch takes per token beside a snapshot."""
MASTER, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes of float32 numbers: AdamW has two moments."""


# ---- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Sizes):
    """What of a ``config.json`` decides how much memory it takes."""

    family: str

    @property
    def mixed(self) -> int:
        """Attention's result: query heads x D."""
        return self.heads * self.head_dim

    @property
    def linear(self) -> Mapping[str, tuple[int, int]]:
        """{name: (out, in)} of the linear layers of one block."""
        kv = self.kv_heads * self.head_dim
        return {
            "q_proj": (self.mixed, self.hidden), "k_proj": (kv, self.hidden), "v_proj": (kv, self.hidden),
            "o_proj": (self.hidden, self.mixed), "gate_proj": (self.ff, self.hidden), "up_proj": (self.ff, self.hidden),
            "down_proj": (self.hidden, self.ff),
        }  # fmt: skip

    @property
    def block(self) -> int:
        """Parameters of one layer."""
        small = 2 * self.hidden + {"qwen2": self.qkv, "qwen3": 2 * self.head_dim}.get(self.family, 0)
        return sum(out * into for out, into in self.linear.values()) + small

    @property
    def ends(self) -> int:
        """Parameters of embedding, head and last norm."""
        return (1 if self.tied else 2) * self.vocab * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.block + self.ends

    def adapters(self, lora: LoRA) -> int:
        """Parameters of low-rank adapters."""
        named = {name: size for name, size in self.linear.items() if not lora.targets or any(
            target.rpartition(".")[2] == name for target in lora.targets)}  # fmt: skip
        return self.layers * lora.rank * sum(out + into for out, into in named.values())


def read_model(folder: Path) -> Model:
    """Raises ModelError where config.json is missing, lacks a size or is of a family without formulas; ConfigError for a size
    that is none."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError("config.json not found", where=str(folder), fix="give a Hugging Face model folder") from None
    except ValueError as error:
        raise ModelError(f"config.json is not JSON: {error}", where=str(path), fix="fetch the model again") from None
    if not isinstance(config, dict):
        raise ModelError("config.json is no JSON object", where=str(path), fix="fetch the model again")
    family = config.get("model_type")
    if family not in FAMILIES or config.get("quantization_config"):
        raise ModelError(
            f"there are no formulas for the memory of this model: model_type {family!r}"
            + (", quantised" if config.get("quantization_config") else ""),
            where=str(path), fix=f"known: {', '.join(FAMILIES)}, not quantised",
        )  # fmt: skip
    try:
        return Model(family=family, **sizes_of(config, where=str(path)))
    except KeyError as error:
        raise ModelError(f"config.json has no {error}", where=str(path), fix="fetch the model again") from None


# ---- the work --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The most that is in flight at once, in tokens and rows."""

    rows: int
    """Tokens of a microbatch, a common prompt counted once."""
    flat: int
    """The same with each sample's own prompt: what all but the fast path run over."""
    longest: int
    """Of a prompt or of a completion."""
    sampled: int
    """Rows decoded at once."""
    prompts: int
    """Different prompts among them."""
    prompt: int
    new: int
    update: int
    """Tokens of an optimiser step, a common prompt counted once."""


def work_of(stage: Recipe, model: Model, prompt_tokens: int | None = None) -> Work:
    """Of a stage as filled by its preset; prompts of ``prompt_tokens`` at most, else ``data.max_prompt_tokens``."""
    part, sampling, evaluate, moved = stage.algorithm, stage.sampling, stage.evaluate, stage.engine.balance
    if "samples" in moved:
        allocation = stage.allocation.model_copy(update={"samples_per_prompt": moved["samples"][1]})
        stage = stage.model_copy(update={"allocation": allocation})
    concurrent = moved["sampler_rows"][1] if "sampler_rows" in moved else sampling.max_concurrent
    prompt = min(stage.data.max_prompt_tokens, model.max_length, prompt_tokens or model.max_length)
    new = min(sampling.max_new_tokens, model.max_length)
    learns, each, samples = new, stage.allocation.samples_per_prompt, stage.allocation.most(stage.prompts_per_step)
    if not isinstance(part, PolicyGradient):
        cap = part.max_solution_tokens if isinstance(part, SFT) else part.max_completion_tokens
        learns = min(cap or stage.tokens_per_microbatch, model.max_length - prompt)
        each, samples = (2, 2 * stage.prompts_per_step) if isinstance(part, DPO) else (1, stage.prompts_per_step)
    total = stage.prompts_per_step * prompt + samples * learns
    rows = max(min(stage.tokens_per_microbatch, total), prompt + learns if isinstance(part, PolicyGradient) else 1)
    measured = [source for source in (stage.data.held_out, stage.data.unseen) if source is not None]
    problems = max(evaluate.problems, evaluate.final_problems) if measured else 0
    drawn = 0
    if isinstance(part, PolicyGradient):
        drawn = samples + stage.prompts_per_step * (part.advantage == "remax")
    batches = 1 if stage.engine.lockstep else 1 + stage.engine.max_lag  # sampled at once
    sampled = min(concurrent, max(problems * evaluate.samples, drawn * batches))
    return Work(
        rows=rows, flat=math.ceil(rows * each * (prompt + learns) / (prompt + each * learns)),
        longest=max(prompt, learns), sampled=sampled, prompts=min(sampled, max(problems, batches * stage.prompts_per_step)),
        prompt=prompt, new=new, update=-(-total // min(stage.updates_per_step, stage.prompts_per_step)),
    )  # fmt: skip


# ---- what takes memory -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``bytes`` of one thing. Those of one ``phase`` are there together; '' is always there."""

    name: str
    bytes: int
    phase: str = ""
    on_host: bool = False
    """In the CPU's memory, whatever the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One of ``count`` like processes, its parts on the CPU's memory (``host``) and on a GPU's."""

    name: str
    pool: str = ""
    """Of home ray."""
    count: int = 1
    host: tuple[Part, ...] = ()
    gpu: tuple[Part, ...] = ()

    @property
    def host_bytes(self) -> int:
        return most(self.host)

    @property
    def gpu_bytes(self) -> int:
        return most(self.gpu)


def most(parts: Iterable[Part]) -> int:
    """What is held plus the largest phase."""
    phases: dict[str, int] = {"": 0}
    for part in parts:
        phases[part.phase] = phases.get(part.phase, 0) + part.bytes
    return phases.pop("") + max(phases.values(), default=0)


def _width(engine: Engine) -> int:
    return 2 if engine.dtype == "bfloat16" else 4


def _is_fast(model: Model, engine: Engine) -> bool:
    """Whether the sampler, and with one rank the learner, takes the fast path."""
    return engine.path != "simple" and model.family in FAST and not engine.compile


def _weights(model: Model, engine: Engine, lora: LoRA | None) -> list[Part]:
    """Of the policy in the learner's process, before it has learned anything."""
    size, width, fast = model.parameters, _width(engine), _is_fast(model, engine)
    parts = [Part(name="weights, float32", bytes=MASTER * size)]
    if fast and lora:  # the merged model, and the copy that it was made from
        parts.append(Part(name="working copies", bytes=size * (width + (width if width < MASTER else 0))))
    elif fast and width < MASTER:
        parts.append(Part(name="working copy", bytes=width * size))
    if not fast and engine.device == "cpu":  # tensors were copied into one buffer: the process keeps their places
        parts.append(Part(name="left by loading", bytes=MASTER * size // 2))
    learns = model.adapters(lora) if lora else size
    if lora:
        parts.append(Part(name="adapters", bytes=MASTER * learns))
    parts.append(Part(name="gradients", bytes=GRADIENT * learns))
    return parts


def _moments(model: Model, lora: LoRA | None) -> Part:
    return Part(name="moments", bytes=MOMENTS * (model.adapters(lora) if lora else model.parameters))


def _sampler_copy(model: Model, engine: Engine) -> Part:
    """What the own sampler keeps beside the learner's weights; with a lag, in one process, weights of its own too."""
    width, head, apart = _width(engine), model.vocab * model.hidden, engine.max_lag > 0 and engine.home == "local"
    if not _is_fast(model, engine):
        shares = width == MASTER and not apart and not engine.compile
        return Part(name="sampler's copy", bytes=0 if shares else width * model.parameters)
    own = width * model.parameters if apart and engine.ranks == 1 else 0  # of ranks it has its own always
    if engine.device == "cpu" and width < MASTER:
        return Part(name="sampler's copy, packed", bytes=own + width * (model.layers * model.block + head))
    return Part(name="sampler's copy of q, k, v", bytes=own + width * model.layers * model.qkv * model.hidden)


def _decoding(model: Model, work: Work, engine: Engine) -> list[Part]:
    """Keys and values of all rows at their longest, and what a step and a prefill need."""
    width, fast = _width(engine), _is_fast(model, engine)
    token = 2 * model.layers * model.kv_heads * model.head_dim * width
    if fast:
        own = OWN_STEP * 2 ** max(0, math.ceil(math.log2(work.new / OWN_STEP)))
        cache = token * (work.prompts * work.prompt + work.sampled * own * 5 // 4)  # a quarter more while it grows
    else:
        cache = token * work.sampled * (work.prompt + work.new) * 3 // 2  # half as much again while it grows
    prefill = work.prompts * work.prompt
    row = 12 * model.hidden + width * (4 * model.qkv + 3 * model.ff)
    logits = work.sampled * model.vocab * width + 4 * BLOCK * model.vocab * 4
    return [
        Part(name="keys and values", bytes=cache, phase="sample"),
        Part(name="prefill and logits", bytes=prefill * row + logits, phase="sample"),
    ]


def _updating(model: Model, work: Work, engine: Engine, *, values: bool = False, tp: int = 1) -> list[Part]:
    """Activations of a microbatch, what is thrown away at once, and logits."""
    width = _width(engine)
    if _is_fast(model, engine) and engine.ranks == 1:
        kept = 8 * model.hidden + width * (model.qkv + model.mixed + 2 * model.ff)
        rows, chunk = work.rows, width * CHUNK + 5 * 4 * BLOCK
        scores = min(SCORES, rows * model.heads * (work.prompt + work.longest))
        each = model.heads // model.kv_heads
        scratch = 5 * 4 * scores + 2 * 4 * each * work.longest**2 + rows * (
            5 * width * model.ff + 24 * model.hidden + 20 * model.qkv
        )  # fmt: skip
        inputs = 4 * model.hidden
    else:
        rows, chunk = work.flat, CHUNK_SIMPLE * (width + 4 * 4) // tp
        kept = 16 * model.hidden + width * (rows + (2 * model.qkv + 4 * model.mixed + 4 * model.ff) // tp)
        scratch = rows * rows * 5 + rows * (24 * model.hidden + 4 * width * model.ff // tp)
        if engine.ranks == 1 and width < MASTER:  # autocast: inputs of linear layers, and every weight
            kept += 5 * width * model.hidden
            scratch += width * model.parameters
        inputs = 4 * model.hidden
    if engine.activation_checkpointing:
        activations = rows * (model.layers * inputs + kept)
    else:
        activations = rows * model.layers * kept
    return [
        Part(name="activations", bytes=activations, phase="update"),
        Part(name="logits", bytes=0 if values else chunk * model.vocab, phase="update"),
        Part(name="scratch", bytes=scratch, phase="update"),
    ]


def _rank(
    model: Model, work: Work, engine: Engine, *, lora: LoRA | None = None, reference: bool = False, critic: bool = False
) -> list[Part]:
    """Of one of several ranks, slices first: FSDP2 over ``ranks``, layers cut over ``tp``."""
    width, size, tp, host = _width(engine), model.parameters, engine.tp, engine.offload
    own, learns = -(-size // engine.ranks), -(-(model.adapters(lora) if lora else size) // engine.ranks)
    trained = (MASTER + GRADIENT + MOMENTS) * own * critic
    gathered = 2 * width * model.block // tp + width * model.ends // tp
    summed = (width + GRADIENT) * max(model.block, model.ends) // tp
    return [
        Part(name="weights, float32", bytes=MASTER * (own + (learns if lora else 0)), on_host=host),
        Part(name="gradients", bytes=GRADIENT * learns, on_host=host),
        Part(name="moments", bytes=MOMENTS * learns, on_host=host),
        Part(name="reference", bytes=0 if lora or not reference else MASTER * own, on_host=host),
        Part(name="critic with gradients and moments", bytes=trained, on_host=host),
        Part(name="gathered layers", bytes=gathered, phase="update"),
        Part(name="gradients to be summed", bytes=summed, phase="update"),
        *_updating(model, work, engine, tp=tp),
    ]


def _saved(model: Model, engine: Engine, lora: LoRA | None, *, critic: bool = False) -> Part:
    """A rank's copy of what a checkpoint holds, until it is written: training goes on meanwhile, but for that on Ray."""
    own = -(-model.parameters // engine.ranks)
    learns = -(-model.adapters(lora) // engine.ranks) if lora else 0
    held = MASTER * own + (MASTER + MOMENTS) * learns if lora else (MASTER + MOMENTS) * own
    size = held + (MASTER + MOMENTS) * own * critic
    return Part(name="checkpoint", bytes=size, phase="" if engine.home == "local" else "save", on_host=True)


def _copy(model: Model, engine: Engine) -> int:
    """Weights and working copy of a model that is not the policy."""
    width = _width(engine)
    return model.parameters * (MASTER + (width if _is_fast(model, engine) and width < MASTER else 0))


def _extra(stage: Recipe, model: Model, work: Work) -> dict[str, list[Part]]:
    """{reference, critic: its parts}, of those that the algorithm has; a critic never has adapters."""
    part, engine = stage.algorithm, stage.engine
    found: dict[str, list[Part]] = {}
    frozen = isinstance(part, DPO | KTO) or (isinstance(part, PolicyGradient) and part.kl.coef > 0)
    if frozen:
        if stage.lora and engine.home == "local":  # the model without its adapters
            size = _width(engine) * model.parameters if _is_fast(model, engine) else 0
        else:
            size = _copy(model, engine)
        logits = CHUNK * model.vocab * _width(engine) if _is_fast(model, engine) and engine.ranks == 1 else 0
        found["reference"] = [Part(name="reference", bytes=size + logits)]
    if isinstance(part, PolicyGradient) and part.critic is not None:
        trained = (GRADIENT + MOMENTS) * model.parameters
        found["critic"] = [Part(name="critic with gradients and moments", bytes=_copy(model, engine) + trained)]
        if engine.home == "ray":
            found["critic"] += _updating(model, work, engine, values=True)
    return found


def processes(stage: Recipe, model: Model, work: Work) -> tuple[Process, ...]:
    """Every process of a stage with its parts. A stage as filled by its preset."""
    if not isinstance(stage.algorithm, PolicyGradient):  # nothing is drawn ahead
        stage = stage.model_copy(update={"engine": stage.engine.model_copy(update={"max_lag": 0})})
    engine, lora = stage.engine, stage.lora
    extra = _extra(stage, model, work)
    drawn = _sampling(model, work, engine)
    if engine.ranks > 1:
        return _sharded(stage, model, work, extra, drawn)
    learning = [*_weights(model, engine, lora), _moments(model, lora), *_updating(model, work, engine)]
    if engine.home == "local":
        parts = [*learning, *drawn, *(part for each in extra.values() for part in each)]
        if engine.device != "cpu" and lora is None:
            parts.append(_saved(model, engine, None, critic="critic" in extra))
        return (_placed("run", engine, parts),)
    plain = _weights(model, engine, None)  # every actor builds an engine of its own, a sampler's copy included
    own = _sampler_copy(model, engine)
    apart = _apart(stage, model, work, drawn, critic="critic" in extra)
    found = [*apart, _placed("learner", engine, [*learning, own, _carried(model, engine)])]
    if "reference" in extra:
        gradients = Part(name="gradients", bytes=GRADIENT * model.parameters)
        found.append(_placed("reference", engine, [*extra["reference"], gradients, own]))
    if "critic" in extra:
        found.append(_placed("critic", engine, [*extra["critic"], *plain, own]))
    return tuple(found)


def _apart(stage: Recipe, model: Model, work: Work, drawn: Sequence[Part], *, critic: bool) -> tuple[Process, Process]:
    """Driver and sampler on Ray. The driver holds, in its machine's object store, what brings a lost learner or critic back:
    masters and moments of what learns, twice while the next snapshot is made, and the updates since."""
    engine, lora = stage.engine, stage.lora
    learns = (model.adapters(lora) if lora else model.parameters) + model.parameters * critic
    state, since = (MASTER + MOMENTS) * learns, RECORDED * REPLAYED * work.update * (1 + critic)
    driver = (
        Part(name="process", bytes=PROCESS),
        Part(name="snapshot", bytes=state),
        Part(name="the next snapshot", bytes=state, phase="update"),
        Part(name="updates since the snapshot", bytes=since),
        Part(name="weights last published", bytes=_carried(model, engine).bytes),
    )
    parts = [*_weights(model, engine, None), *drawn, _carried(model, engine)]
    return Process(name="driver", host=driver), _placed("sampler", engine, parts)


def _carried(model: Model, engine: Engine) -> Part:
    return Part(name="weights on their way", bytes=_width(engine) * model.parameters, on_host=True)


def _sampling(model: Model, work: Work, engine: Engine) -> list[Part]:
    if engine.sampler == "own":
        return [_sampler_copy(model, engine), *_decoding(model, work, engine)]
    if engine.vllm_url:
        return [_carried(model, engine)]
    phase = "sample" if engine.sleeps and engine.device != "cpu" else ""
    return [
        Part(name="vLLM's weights", bytes=_width(engine) * model.parameters, phase=phase),
        Part(name="vLLM's keys and values (engine.vllm_memory)", bytes=int(engine.vllm_memory * GIB), phase=phase),
        Part(name="vLLM", bytes=VLLM),
    ]


def _placed(name: str, engine: Engine, parts: Sequence[Part], *, count: int = 1) -> Process:
    """Processes that compute on the device of ``engine``, in the pool of their role."""
    pool = "" if engine.home == "local" else engine.pool_of(name.removesuffix(" rank"))
    cpu = engine.device == "cpu"
    host = (Part(name="process", bytes=PROCESS), *(part for part in parts if part.on_host or cpu))
    gpu = () if cpu else (Part(name="CUDA", bytes=CONTEXT), *(part for part in parts if not part.on_host))
    return Process(name=name, pool=pool, count=count, host=host, gpu=gpu)


def _sharded(
    stage: Recipe, model: Model, work: Work, extra: Mapping[str, Sequence[Part]], drawn: Sequence[Part]
) -> tuple[Process, ...]:
    engine, lora = stage.engine, stage.lora
    if (
        engine.home == "ray"
    ):  # each role in an actor of its own, beside its ranks; a critic's keep the policy that it was made from
        parts = {
            "learner": [*_rank(model, work, engine, lora=lora), _saved(model, engine, lora)],
            "critic": [*_rank(model, work, engine, critic=True), _saved(model, engine, None)],
            "reference": _rank(model, work, engine),
        }
        here = (Part(name="process", bytes=PROCESS), _carried(model, engine))
        found = list(_apart(stage, model, work, drawn, critic="critic" in extra))
        for role in ("learner", *extra):
            found.append(Process(name=role, pool=engine.pool_of(role), host=here))
            found.append(_placed(f"{role} rank", engine, parts[role], count=engine.ranks))
        return tuple(found)
    critic = "critic" in extra
    rank = _rank(model, work, engine, lora=lora, reference="reference" in extra, critic=critic)
    if engine.sampler == "own":
        fast = _is_fast(model, engine)
        drawn = [
            Part(name="weights drawn from", bytes=_width(engine) * model.parameters),
            *(part for part in drawn if fast or part.phase),
        ]
    elif not engine.vllm_url:  # what vLLM loads at a publish is put together here
        drawn = [*drawn, _carried(model, engine)]
    run = _placed("run", engine, drawn)
    return run, _placed("rank", engine, [*rank, _saved(model, engine, lora, critic=critic)], count=engine.ranks)


# ---- whether it fits -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one place needs: this machine, a pool of machines, or a GPU."""

    place: str
    kind: str
    """``host`` or ``gpu``"""
    bytes: int
    processes: tuple[str, ...]


def demands(engine: Engine, found: Sequence[Process]) -> tuple[Demand, ...]:
    """The processes added up by place; of several GPUs the fullest.

    Pools of a cluster are machines of their own, those of ``engine.ray: local`` share this one.
    """
    machines: dict[str, list[Process]] = {}
    for process in found:
        apart = engine.home == "ray" and engine.ray != "local" and process.pool
        machines.setdefault(f"pool {process.pool}" if apart else "this machine", []).append(process)
    out = []
    for place, there in machines.items():
        names = tuple(p.name for p in there for _ in range(p.count))
        out.append(Demand(place=place, kind="host", bytes=sum(p.count * p.host_bytes for p in there), processes=names))
    for pool in dict.fromkeys(p.pool for p in found if p.gpu):
        users = [p for p in found if p.gpu and p.pool == pool]
        gpus = engine.pools[pool].gpus if pool else max(p.count for p in users)
        each = [p.gpu_bytes for p in users]
        shared = max(each) if pool and gpus >= sum(p.count for p in users) else sum(each)
        place = f"a GPU of pool {pool}" if pool else "the first GPU"
        out.append(Demand(place=place, kind="gpu", bytes=shared, processes=tuple(p.name for p in users)))
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes of one machine and of one GPU; None: not known, so nothing is refused for it."""

    host: int | None = None
    gpu: int | None = None

    def exceeded(self, needed: Sequence[Demand]) -> Demand | None:
        """The place that lacks most, if one does."""
        lacking = [(demand.bytes - limit, demand) for demand in needed if (limit := self.of(demand)) is not None]
        worst = max(lacking, key=lambda each: each[0], default=None)
        return worst[1] if worst and worst[0] > 0 else None

    def of(self, demand: Demand) -> int | None:
        return self.gpu if demand.kind == "gpu" else self.host


def estimate(stage: Recipe, model: Model, prompt_tokens: int | None = None) -> tuple[Process, ...]:
    return processes(stage, model, work_of(stage, model, prompt_tokens))


def refuse_context(stage: Recipe, model: Model, *, name: str = "") -> None:
    """Raise ConfigError where answers may be as long as all that the model reads, so that no prompt has room."""
    new = stage.sampling.max_new_tokens
    if isinstance(stage.algorithm, PolicyGradient) and new >= model.max_length:
        raise ConfigError(
            f"{f'stage {name}: ' if name else ''}sampling.max_new_tokens is {new}, and prompt and completion together have "
            f"{model.max_length} tokens of this model's context",
            where="sampling.max_new_tokens", fix=f"set it below {model.max_length}, so that prompts have room",
        )  # fmt: skip


def refuse_unfit(
    stage: Recipe, model: Model, limits: Limits, *, prompt_tokens: int | None = None, name: str = ""
) -> None:
    """Raise ConfigError where a stage cannot fit, with the key to change and what it would then need."""

    def needed(of: Recipe) -> tuple[Demand, ...]:
        return demands(of.engine, estimate(of, model, prompt_tokens))

    worst = limits.exceeded(needed(stage))
    if worst is None:
        return
    limit = limits.of(worst)
    assert limit is not None
    largest, size = _largest(estimate(stage, model, prompt_tokens), worst.kind)
    of = f"stage {name}: " if name else ""
    raise ConfigError(
        f"{of}it needs {size_text(worst.bytes)} on {worst.place} ({', '.join(dict.fromkeys(worst.processes))}) and there are "
        f"{size_text(limit)}; most of it: {largest}, {size_text(size)}",
        where="jurat estimate shows each part",
        fix=_way_out(stage, limits, needed) or f"take a smaller model, or a machine with more than {size_text(worst.bytes)}",
    )  # fmt: skip


def _largest(found: Sequence[Process], kind: str) -> tuple[str, int]:
    """The largest part, with the role that has it, of all its processes together."""
    parts = []
    for process in found:
        count = process.count if kind == "host" else 1  # GPUs are one each
        named = process.name if count == 1 else f"{process.name}, {count} of them"
        there = process.gpu if kind == "gpu" else process.host
        parts += [(f"{part.name} ({named})", count * part.bytes) for part in there]
    return max(parts, key=lambda each: each[1])


def _way_out(stage: Recipe, limits: Limits, needed: Callable[[Recipe], Sequence[Demand]]) -> str:
    """The first single key that would do, else several together; '' where none does."""

    def lack(recipe: Recipe) -> int:
        return sum(max(0, demand.bytes - (limits.of(demand) or demand.bytes)) for demand in needed(recipe))

    changes = list(_changes(stage))
    for key, value, change in changes:
        if not lack(change(stage)):
            return f"set {key}: {value}"
    changed, together = stage, dict[str, Any]()
    for key, value, change in changes:
        tried = change(changed)
        if lack(tried) < lack(changed):
            changed, together[key] = tried, value
        if not lack(changed):
            return "set " + ", ".join(f"{key}: {value}" for key, value in together.items())
    return ""


def _changes(stage: Recipe) -> Iterable[tuple[str, object, Callable[[Recipe], Recipe]]]:
    """(key, value, recipe -> recipe), the cheapest in quality and time first."""

    def top(**update: Any) -> Callable[[Recipe], Recipe]:
        return lambda recipe: recipe.model_copy(update=update)

    def engine(**update: Any) -> Callable[[Recipe], Recipe]:
        return lambda recipe: recipe.model_copy(update={"engine": recipe.engine.model_copy(update=update)})

    tokens, prompt = stage.tokens_per_microbatch, stage.data.max_prompt_tokens
    for part in (2, 4, 8):
        if prompt // part >= 128:  # a bound on what the data may hold: free, where its prompts are shorter
            data = stage.data.model_copy(update={"max_prompt_tokens": prompt // part})
            yield "data.max_prompt_tokens", prompt // part, top(data=data)
    for part in (2, 4, 8, 16):
        if tokens // part >= 128:
            yield "tokens_per_microbatch", tokens // part, top(tokens_per_microbatch=tokens // part)
    rows = stage.sampling.max_concurrent
    for part in (2, 4, 8):
        if rows // part >= 8:
            sampling = stage.sampling.model_copy(update={"max_concurrent": rows // part})
            yield "sampling.max_concurrent", rows // part, top(sampling=sampling)
    if not stage.engine.activation_checkpointing:
        yield "engine.activation_checkpointing", "true", engine(activation_checkpointing=True)
    if stage.engine.sampler == "vllm" and stage.engine.vllm_memory > 0.5:
        yield "engine.vllm_memory", 0.5, engine(vllm_memory=0.5)
    if stage.engine.dtype == "float32":
        yield "engine.dtype", "bfloat16", engine(dtype="bfloat16")
    sleeps = stage.engine.model_copy(update={"offload": True}).sleeps
    if (stage.engine.ranks > 1 or sleeps) and stage.engine.device != "cpu" and not stage.engine.offload:
        yield "engine.offload", "true", engine(offload=True)
    if stage.engine.ranks == 1 and stage.lora is None and stage.algorithm.name not in ("ppo",):
        yield "lora", "{rank: 16}", top(lora=LoRA())
    if (
        stage.engine.ranks > 1 and stage.engine.device == "cpu"
    ):  # of one machine: each holds buffers, and a Python, of its own
        ranks, tp = stage.engine.ranks, stage.engine.tp
        for fewer in (ranks // 2, ranks // 4, ranks // 8, ranks // 16, ranks // 32):
            if fewer >= max(2, tp) and fewer % tp == 0:
                yield "engine.ranks", fewer, engine(ranks=fewer)
        yield "engine.ranks", 1, engine(ranks=1, tp=1)
    if stage.engine.ranks > 1 and stage.engine.device != "cpu":
        for more in (2, 4, 8):
            yield "engine.ranks", stage.engine.ranks * more, engine(ranks=stage.engine.ranks * more)


def size_text(size: int) -> str:
    """``3.2 GiB``"""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
