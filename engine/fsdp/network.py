"""A transformers model cut over ranks: tensor parallelism within layers, FSDP2 over what is left.

The model is made without memory for its parameters; each layer gets real ones only until it is cut, so no rank ever
holds more than its own slices and one layer. Values are then read slice by slice.

Seam: sequence parallelism would cut ``mb.tokens`` in ``_within`` and give ``PLAN`` sequence-parallel norms (docs/ranks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from jurat.engine.fsdp.head import VocabularyParallel
from jurat.engine.learner import Tally
from jurat.engine.reshard import Layout, Shape
from jurat.engine.simple.learner import SimpleNetwork, SimpleValueNetwork, layers_of, silence, with_value_head
from jurat.platform.errors import ConfigError, ModelError
from jurat.platform.ports import Objective
from jurat.platform.types import Microbatch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PretrainedConfig, PreTrainedModel

T = TypeVar("T")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose layers have the linear maps of ``PLAN``."""
PLAN = {
    "self_attn.q_proj": 0, "self_attn.k_proj": 0, "self_attn.v_proj": 0, "self_attn.o_proj": 1,
    "mlp.gate_proj": 0, "mlp.up_proj": 0, "mlp.down_proj": 1,
}  # fmt: skip
"""Dimension of the weight that tensor parallelism cuts: 0 by outputs, 1 by inputs (Shoeybi et al. 2019)."""
PARTIAL = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
"""Whole on every tensor-parallel rank, but each sees its own heads only: gradients are summed over them."""


class ShardedNetwork(SimpleNetwork):
    """``SimpleNetwork`` on slices: every rank of ``mesh`` (fsdp x tp) makes one and calls its methods in step.

    ``dtype`` is that of the gathered parameters; slices, gradients and their sums over ranks are float32. Gradients are
    summed over ranks, not averaged: weights of an update carry its global normaliser. ``tick`` is called at each layer.
    """

    def __init__(
        self,
        folder: Path,
        mesh: DeviceMesh,
        *,
        dtype: torch.dtype = torch.bfloat16,
        temperature: float = 1.0,
        checkpointing: bool = False,
        offload: bool = False,
        chunk: int = 512,
        fused: bool = False,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = self.made(folder)
        self.dtype = torch.float32  # no autocast: FSDP gathers parameters in ``dtype``
        self.temperature, self.chunk, self.packs, self.fused = temperature, chunk, True, fused
        self.tolerance = 1e-3 if dtype == torch.float32 else 0.1  # states of another segment are all different ones
        silence(self.model, checkpointing=checkpointing)
        learns = self.learning()
        chosen = {id(parameter) for parameter in learns.values()}
        for parameter in self.model.parameters():
            parameter.requires_grad_(id(parameter) in chosen)
        self.shapes: Mapping[str, Shape] = {name: tuple(p.shape) for name, p in self.named().items()}
        self.learned_shapes: Mapping[str, Shape] = {name: tuple(p.shape) for name, p in learns.items()}
        size, tp = mesh["fsdp"].size(), mesh["tp"].size()
        dims = tensor_parallel_dims(self.model, tp) if tp > 1 else {}
        self.vocabulary = tp > 1 and self.model.config.vocab_size % tp == 0
        """Whether embedding and head are cut along the vocabulary too; else every tensor-parallel rank has them whole."""
        if self.vocabulary:
            dims |= {
                name: 0 for name, p in self.model.named_parameters() if any(p is end.weight for end in self._ends())
            }
        self.layout = Layout(fsdp=size, tp=tp, dims=dims)
        self.rank = mesh["fsdp"].get_local_rank() * tp + mesh["tp"].get_local_rank()
        self.device = (
            torch.device(mesh.device_type, torch.cuda.current_device()) if _cuda(mesh) else torch.device("cpu")
        )
        self.root = _Root(self.model)
        self._cut(mesh, dtype, offload=offload)
        self.parameters, self._learning = self.named(), self.learning()
        for layer in layers_of(self.model):
            layer.register_forward_pre_hook(lambda *_: tick())
        self._agree()

    def made(self, folder: Path) -> PreTrainedModel:
        """The model without values."""
        return skeleton(folder)

    def named(self) -> dict[str, nn.Parameter]:
        """{transformers name: parameter} of the model, tied ones once."""
        return dict(self.model.named_parameters())

    def learning(self) -> dict[str, nn.Parameter]:
        """{name: parameter} of what learns."""
        return self.named()

    def _ends(self) -> list[Any]:
        """Embedding and, where there is one, head."""
        ends = (self.model.get_input_embeddings(), self.model.get_output_embeddings())
        return [end for end in ends if hasattr(end, "weight")]

    def _cut(self, mesh: DeviceMesh, dtype: torch.dtype, *, offload: bool) -> None:
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            FSDPModule,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        settings: dict[str, Any] = {
            "mesh": mesh["fsdp"],
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
            ),
            "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        }
        made: dict[nn.Parameter, nn.Parameter] = {}  # tied parameters stay one
        styles = {name: RowwiseParallel() if dim else ColwiseParallel() for name, dim in PLAN.items()}
        for layer in layers_of(self.model):
            _materialise(layer, made, self.device)
            if self.layout.tp > 1:
                parallelize_module(layer, mesh["tp"], styles)  # type: ignore[arg-type]
            fully_shard(layer, **settings)
        _materialise(self.root, made, self.device)
        if self.vocabulary:
            embed, *heads = self._ends()
            tied = [head for head in heads if head.weight is embed.weight]
            parallelize_module(embed, mesh["tp"], RowwiseParallel(input_layouts=Replicate()))
            for head in heads:
                parallelize_module(head, mesh["tp"], ColwiseParallel())
            for head in tied:
                head.weight = embed.weight
            part = self.model.config.vocab_size // self.layout.tp
            self.reduce = VocabularyParallel(self.rank % self.layout.tp * part, mesh["tp"].get_group())
        for exact in self._exact():
            fully_shard(exact, **{**settings, "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)})
        fully_shard(self.root, **settings)
        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                if not hasattr(module, "set_force_sum_reduction_for_comms"):
                    raise ConfigError(f"torch {torch.__version__} cannot add gradients of ranks, it averages them",
                                      where="engine.ranks", fix="install the torch of constraints.txt")  # fmt: skip
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def _exact(self) -> list[nn.Module]:
        """Modules that compute in float32 whatever ``dtype`` is."""
        return []

    def _agree(self) -> None:
        shapes = {**self.shapes, **self.learned_shapes}
        for name, tensor in {**self.slices(), **self.learned_slices()}.items():
            box = self.layout.box(name, shapes[name], self.rank)
            if tuple(tensor.shape) != tuple(stop - start for start, stop in box):
                raise ModelError(f"torch cut {name!r} to {tuple(tensor.shape)}, the layout says {box}",
                                 fix="use a version of torch that constraints.txt names")  # fmt: skip

    def check(self) -> None:
        """Once values are there. Raises ModelError if segments cannot be packed: ranks would fall out of step."""
        if not self._within(self._check):
            raise ModelError(
                f"{type(self.model).__name__} does not give packed segments their own states, which several ranks need",
                where="engine.ranks", fix="set engine.ranks: 1",
            )  # fmt: skip
        self.root.reshard()

    @torch.no_grad()
    def slices(self) -> dict[str, Tensor]:
        """{name: this rank's box of the float32 master}; tied tensors once."""
        return {name: local_of(parameter) for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def learned_slices(self) -> dict[str, Tensor]:
        """The same of what learns."""
        return {name: local_of(parameter) for name, parameter in self._learning.items()}

    def begin(self) -> None:
        """Give what learns its first values, once the model has its own: here they are the same."""

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Within, the model is the one that the learner began with; only adapters can do that."""
        raise NotImplementedError
        yield

    def published(self) -> Mapping[str, Tensor]:
        """This rank's boxes of the model that samples and is stored. Collective."""
        return self.slices()

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """{name: this rank's box of the gradient, zeros before any backward pass}."""
        return {
            name: torch.zeros_like(local_of(p)) if p.grad is None else local_of(p.grad)
            for name, p in self._learning.items()
        }

    def clear_gradients(self) -> None:
        for parameter in self._learning.values():
            parameter.grad = None

    def logprobs(self, mb: Microbatch) -> Tensor:
        found = self._within(lambda: self._logprobs(mb)[0])
        self.root.reshard()  # a forward pass alone leaves the root gathered: it would not see the next update
        return found.detach()

    def backward(self, mb: Microbatch, objective: Objective, tally: Tally) -> None:
        current, entropy = self._within(lambda: self._logprobs(mb))
        tally.forwarded += len(mb.tokens)
        current.backward(tally.judge(objective, current, entropy, mb))

    def idle(self, *, learning: bool) -> None:
        """Take part in the collectives of a microbatch without having one."""
        mb = Microbatch(
            tokens=torch.zeros(2, dtype=torch.int64, device=self.device),
            offsets=torch.tensor([0, 2], device=self.device),
            loss_mask=torch.tensor([False, True], device=self.device),
            sampler_logprobs=torch.zeros(2, device=self.device),
            weights=torch.zeros(2, device=self.device),
            advantages=torch.zeros(2, device=self.device),
        )
        if learning:
            current, _ = self._within(lambda: self._logprobs(mb))
            current.backward(torch.zeros_like(current))
        else:
            self.logprobs(mb)

    def _within(self, work: Callable[[], T]) -> T:
        """Do ``work`` inside the root's forward pass: embedding, last norm and head are whole there."""
        return self.root(work)


class ShardedValueNetwork(ShardedNetwork, SimpleValueNetwork):
    """``SimpleValueNetwork`` on slices: the head is float32, as there."""

    def made(self, folder: Path) -> PreTrainedModel:
        return with_value_head(skeleton(folder))

    def _exact(self) -> list[nn.Module]:
        return [self.model.score]


class _Root(nn.Module):
    reshard: Callable[[], None]  # of FSDPModule, which ``fully_shard`` makes of this

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], T]) -> T:
        return work()


def skeleton(folder: Path) -> PreTrainedModel:
    """The model of an HF folder without values; buffers are real. Raises ModelError."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    config.dtype = torch.float32
    try:
        with parameters_without_memory():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise ModelError(str(error).splitlines()[0], where=str(folder)) from error
    stored = set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if stored:
        raise ModelError(f"{type(model).__name__} keeps buffers among its weights ({min(stored)}), which ranks do not share",
                         where="engine.ranks", fix="set engine.ranks: 1")  # fmt: skip
    return model


def refuse_tp(config: PretrainedConfig, tp: int) -> None:
    """Raise ConfigError where the sizes of a model do not allow ``tp``."""
    where = "engine.tp"
    if config.model_type not in FAMILIES:
        raise ConfigError(f"no tensor-parallel plan for {config.model_type!r}: {', '.join(FAMILIES)} have one",
                          where=where, fix="set engine.tp: 1")  # fmt: skip
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, key) % tp:
            raise ConfigError(f"{key} is {getattr(config, key)}, which {tp} ranks cannot share evenly", where=where,
                              fix=f"choose a divisor of {getattr(config, key)}")  # fmt: skip


def tensor_parallel_dims(model: PreTrainedModel, tp: int) -> dict[str, int]:
    """{name: dimension that tensor parallelism cuts}. Raises ConfigError where the model does not allow ``tp``."""
    refuse_tp(model.config, tp)
    where, dims = "engine.tp", {}
    for name, parameter in layers_of(model).named_parameters(prefix=_prefix(model)):
        module, _, kind = name.rpartition(".")
        dim = next((dim for suffix, dim in PLAN.items() if module.endswith("." + suffix)), None)
        if dim == 1 and kind == "bias":
            raise ConfigError(f"{name} is a bias on a map cut by its inputs, which would count {tp} times", where=where,
                              fix="set engine.tp: 1")  # fmt: skip
        if dim is not None:
            dims[name] = dim
        elif parameter.dim() > 1:
            raise ConfigError(f"no tensor-parallel plan for {name}", where=where, fix="set engine.tp: 1")
    return dims


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory."""
    from torch.distributed.tensor import DTensor

    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach()


def _prefix(model: PreTrainedModel) -> str:
    layers = layers_of(model)
    return next(name for name, module in model.named_modules() if module is layers)


def _cuda(mesh: DeviceMesh) -> bool:
    return mesh.device_type == "cuda"


def _materialise(module: nn.Module, made: dict[nn.Parameter, nn.Parameter], device: torch.device) -> None:
    """Give parameters of ``module`` that have none memory, uninitialised."""
    for inner in module.modules():
        for name, parameter in inner.named_parameters(recurse=False):
            if parameter.is_meta and parameter not in made:
                empty = torch.empty_like(parameter, device=device)
                made[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            if parameter.is_meta:
                setattr(inner, name, made[parameter])
    for inner in module.modules():
        for name, buffer in inner.named_buffers(recurse=False):
            inner._buffers[name] = buffer.to(device)


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Within, parameters are registered on the meta device; buffers are made as ever."""
    register = nn.Module.register_parameter

    def bare(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:  # a tied one stays the same object
            self._parameters[name] = nn.Parameter(param.detach().to("meta"), param.requires_grad)

    nn.Module.register_parameter = bare  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def tied(model: PreTrainedModel) -> set[str]:
    """Names under which a checkpoint may repeat a tensor that another name holds already."""
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
        name for name, _ in model.named_parameters()
    }
