"""What the trainer adds to vLLM's worker: weights of the learner, and draws that depend on (seed, position) alone.

vLLM makes ``Extension`` a base of its worker class. Names begin with ``jurat_`` so as not to meet the worker's own.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable
from typing import IO, Any

import torch
from torch import Tensor, nn

from jurat.engine.sampling import Draws, draw, uniforms

ROWS_PER_DRAW = 16
"""Rows of float32 probabilities made at once."""
MARKED = 4096
"""First bytes of a file of weights, among which its mark stands."""


def in_memory() -> str | None:
    """A folder that lies in memory, if there is one."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


class Extension:
    model_runner: Any
    vllm_config: Any
    _jurat_received: IO[bytes] | None = None

    def jurat_hello(self) -> dict[str, Any]:
        """What a client has to know before it asks for a token; JSON values."""
        import vllm

        config, runner = self.vllm_config, self.model_runner
        return {
            "vllm": vllm.__version__,
            "model": json.loads(config.model_config.hf_text_config.to_json_string(use_diff=False)),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "max_length": int(config.model_config.max_model_len),
            "workers": int(config.parallel_config.world_size_across_dp),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "runner_v1": hasattr(runner, "requests") and hasattr(runner, "input_batch"),
        }

    def jurat_draw(self) -> None:
        """From now on tokens are drawn as the own sampler draws them."""
        if not isinstance(self.model_runner.sampler, Drawing):
            self.model_runner.sampler = Drawing(self.model_runner)

    def jurat_take(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace all weights by these, which have Hugging Face names. For a worker in the process that has them."""
        self.model_runner.reload_weights(weights_iterator=weights)
        repack(self.model_runner.get_model())

    def jurat_load(self, path: str) -> None:
        """The same from a safetensors file, for a worker elsewhere on the machine; then tokens are drawn as ours are."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            self.jurat_take((name, file.get_tensor(name)) for name in list(file.keys()))
        self.jurat_draw()

    def jurat_sees(self, path: str, mark: str) -> dict[str, bool]:
        """{"sees": whether a file with this mark is there for this worker, so that it can be loaded by its path}."""
        try:
            with open(path, "rb") as file:
                return {"sees": mark.encode() in file.read(MARKED)}
        except OSError:
            return {"sees": False}

    def jurat_receive(self, offset: int, data: str) -> None:
        """Bytes of such a file, base64, in order from offset 0, for a worker on another machine; "" ends it and loads it.

        Raises ValueError if a piece is missing.
        """
        if offset == 0 or self._jurat_received is None:
            self._jurat_forget()
            self._jurat_received = tempfile.TemporaryFile(dir=in_memory())  # noqa: SIM115
        file = self._jurat_received
        if offset != file.tell():
            raise ValueError(f"got bytes of weights from {offset}, expected them from {file.tell()}")
        file.write(base64.b64decode(data, validate=True))
        if not data:
            file.flush()
            try:
                self.jurat_load(f"/proc/self/fd/{file.fileno()}")
            finally:
                self._jurat_forget()

    def _jurat_forget(self) -> None:
        if self._jurat_received is not None:
            self._jurat_received.close()
            self._jurat_received = None


def repack(model: nn.Module) -> None:
    """On a CPU, pack anew what a layer keeps both as it is and packed: a head tied to the embedding.

    vLLM's reload packs a layer when it loads that layer's own tensors. A tied head has none: it went on with the packed
    copy of the old embedding, and nothing said so.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if hasattr(layer, "cpu_linear") and isinstance(weight, Tensor) and weight.dim() == 2:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


class Drawing:
    """In place of vLLM's sampler: ``engine/sampling.py`` on the logits of each request.

    ``SamplingParams.extra_args`` of a request holds ``seed``, ``start`` (completion tokens that came with the prompt)
    and ``temperature``. vLLM's own draws come from a generator per request, which begins anew when a request is resumed.
    """

    logprobs_mode = "processed_logprobs"

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __call__(self, logits: Tensor, sampling_metadata: Any, **_: Any) -> Any:
        """logits [B, V], one row for each request of the runner's batch, in its order."""
        from vllm.v1.outputs import LogprobsTensors, SamplerOutput

        states = [self._runner.requests[name] for name in self._runner.input_batch.req_ids]
        asked = [state.sampling_params.extra_args for state in states]
        places = [each["start"] + len(state.output_token_ids) for each, state in zip(asked, states, strict=True)]
        random = uniforms([each["seed"] for each in asked], places)
        draws = Draws.of(random, [each["temperature"] for each in asked], logits.device)
        found = []
        for rows in torch.arange(len(logits), device=logits.device).split(ROWS_PER_DRAW):
            found.append(draw(logits[rows], Draws(draws.uniforms[rows], draws.temperatures[rows], draws.plain)))
        tokens = torch.cat([part for part, _ in found]).int()[:, None]
        logprobs = torch.cat([part for _, part in found])[:, None]
        return SamplerOutput(
            sampled_token_ids=tokens, logprobs_tensors=LogprobsTensors(tokens, logprobs, torch.ones_like(tokens[:, 0]))
        )
