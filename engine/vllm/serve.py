"""``python -m jurat.engine.vllm.serve MODEL [options of vllm serve]``: a vLLM server that runs can sample from by its URL.

It listens on this machine alone unless ``--host`` says otherwise: who reaches it can give it weights.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from jurat.engine.vllm import settings
from jurat.platform.errors import JuratError
from jurat.platform.recipe import Engine


def arguments(given: Sequence[str], *, cpu: bool) -> list[str]:
    """Of vLLM's server for ``given`` = (model, then options, which go last and so win)."""
    model, *rest = given
    sized = any(word.startswith(("--gpu-memory-utilization", "--gpu_memory_utilization")) for word in rest)
    cache = str(int(Engine().vllm_memory * 2**30))
    return [
        "--model", model, "--host", "127.0.0.1", "--tokens-only", "--no-async-scheduling", "--generation-config", "vllm",
        "--max-model-len", "-1", "--enable-prefix-caching", "--worker-extension-cls", settings.EXTENSION,
        *(("--enforce-eager", "--block-size", str(settings.CPU_BLOCK)) if cpu else ()),
        *(("--kv-cache-memory-bytes", cache) if cpu and not sized else ()),  # vLLM's own is 92 % of all memory, free at the start
        *rest,
    ]  # fmt: skip


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    settings.require()
    os.environ.update({**settings.ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"})
    for name, value in settings.DEFAULTS.items():
        os.environ.setdefault(name, value)
    from vllm.entrypoints.launchers.api_server import entry
    from vllm.platforms import current_platform

    sys.argv[1:] = arguments(sys.argv[1:], cpu=current_platform.device_type == "cpu")
    entry.main()


if __name__ == "__main__":
    try:
        main()
    except JuratError as error:
        raise SystemExit(str(error)) from None
