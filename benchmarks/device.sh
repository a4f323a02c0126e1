#!/bin/sh
# The checks that need a GPU, in under ten minutes on one (an H200: sizes are for its memory): see benchmarks/device.py.
#
#   benchmarks/device.sh [arguments of device.py]
#
#   DEVICE   cuda (default), cuda:1, cpu
#   TINY     1: a small model, to try the script on any machine
#   INSTALL  1: install this checkout with vLLM first ('.[train,vllm,liger]', in $PYTHON's environment; several GB)
#   PYTHON   interpreter (default python3)
#   OUT      folder for device.json and device.md (default .)
#
# Without INSTALL nothing is fetched: beside torch, transformers, safetensors and numpy the parts need pydantic alone, and
# `vllm` and `sleep` need vLLM, `liger` liger-kernel. Parts that lack something fail by themselves and say so. Exit status 1:
# some part failed.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
out=${OUT:-.}
began=$(date +%s)
mkdir -p "$out"
if [ "${INSTALL:-0}" = 1 ]; then
    timeout 240 "$python" -m pip install -q "$here[train,vllm,liger]" || echo "install failed or took over 240 s; going on with what is there"
fi
export PYTHONPATH="$here/src${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
left=$((590 - ($(date +%s) - began)))
{
    "$python" "$here/benchmarks/device.py" --device "${DEVICE:-cuda}" ${TINY:+--tiny} --seconds "$left" --json "$out/device.json" "$@"
    echo $? >"$out/device.status"
} | tee "$out/device.md"
exit "$(cat "$out/device.status")"
