"""The port ``Tokenizer`` on a transformers tokenizer: prompts by the chat template, and decoding with exact offsets."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jurat.platform.errors import ModelError
from jurat.platform.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HFTokenizer:
    """A model folder's tokenizer. Padding is never used, so pad may equal eos."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._inner: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"the tokenizer cannot be read: {str(error).splitlines()[0]}",
                where=str(folder),
                fix="copy the tokenizer files from the model that this one was made from",
            ) from error
        config = _json(folder / "config.json")
        text = config.get("text_config", config)
        vocab = self._inner.get_vocab()
        largest, rows = max(vocab.values()), text.get("vocab_size")
        if rows is not None and largest >= rows:
            raise ModelError(
                f"vocabulary mismatch: the tokenizer has ids up to {largest}, the embedding has {rows} rows",
                where=str(folder),
                fix="use the tokenizer that belongs to this model, or resize its embedding",
            )
        longest = (text.get("max_position_embeddings"), self._inner.model_max_length)
        self.max_length: int = min(int(length) for length in longest if length is not None)
        self.eos_ids: tuple[int, ...] = self._ends(config, _json(folder / "generation_config.json"))
        self._vocab = vocab
        self._pieces, self._strips = _byte_table(self._inner, max(largest + 1, rows or 0))
        self._sizes = np.array([len(piece) for piece in self._pieces or ()], dtype=np.int64)

    @property
    def has_chat_template(self) -> bool:
        return self._inner.chat_template is not None

    def encode_prompt(self, messages: Sequence[Message]) -> IntArray:
        """[L0] ids up to where the assistant's text begins (after an opened thinking tag, if the template opens one).

        A model without a chat template gets the contents joined by newlines, after its own opening tokens.
        """
        if not self.has_chat_template:
            ids = self._inner("\n".join(message.content for message in messages))["input_ids"]
            while ids and ids[-1] in self.eos_ids:
                ids.pop()
            return np.asarray(ids, dtype=np.int64)
        return self.encode(self._render([(m.role, m.content) for m in messages], open_reply=True))

    def encode(self, text: str) -> IntArray:
        """[N] ids of plain text, no special tokens added."""
        return np.asarray(self._inner(text, add_special_tokens=False)["input_ids"], dtype=np.int64)

    def decode(self, token_ids: IntArray) -> tuple[str, IntArray]:
        """Text without special tokens, and [N] how many of its characters are complete after each token.

        A character spread over tokens counts after its last one; bytes that are not UTF-8 become U+FFFD.
        """
        if self._pieces is None:
            return self._decode_by_prefixes(token_ids)
        data = b"".join(map(self._pieces.__getitem__, token_ids.tolist()))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self._decode_damaged(self._pieces, token_ids)
        ends = self._sizes[token_ids].cumsum()
        if not data.isascii():  # from bytes to characters: one is complete where the next one starts
            starts = np.flatnonzero((np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80)
            ends = np.searchsorted(np.append(starts[1:], len(data)), ends, side="right")
        if self._strips and text.startswith(" "):
            text, ends = text[1:], np.maximum(ends - 1, 0)
        return text, ends

    # ---- inside ----

    def _decode_damaged(self, table: Sequence[bytes], token_ids: IntArray) -> tuple[str, IntArray]:
        """Where the bytes are not UTF-8: token by token, as a reader who waits for each would see it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts: list[str] = []
        ends = np.empty(len(token_ids), dtype=np.int64)
        length, strip = 0, self._strips
        for place, token in enumerate(token_ids.tolist()):
            part = decoder.decode(table[token])
            if strip and part:
                part, strip = part.removeprefix(" "), False
            parts.append(part)
            length += len(part)
            ends[place] = length
        rest = decoder.decode(b"", final=True)
        if rest:
            parts.append(rest)
            ends[-1] += len(rest)
        return "".join(parts), ends

    def _render(self, turns: Sequence[tuple[str, str]], *, open_reply: bool) -> str:
        from jinja2 import TemplateError

        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text = self._inner.apply_chat_template(messages, add_generation_prompt=open_reply, tokenize=False)
        except TemplateError as error:
            raise ModelError(
                f"the chat template refuses this conversation ({', '.join(role for role, _ in turns)}): {error}",
                where="chat_template of the model",
                fix="drop prompt.system if the model knows no system turn",
            ) from error
        return str(text)

    def _ends(self, *configs: dict[str, Any]) -> tuple[int, ...]:
        """The ids that end a turn: by configuration, and what the chat template writes after an assistant's text."""
        found: list[int | None] = [self._inner.eos_token_id]
        for config in configs:
            ids = config.get("eos_token_id")
            found += ids if isinstance(ids, list) else [ids]
        if self.has_chat_template:
            rendered = self._render([("user", "Q"), ("assistant", "Answer")], open_reply=False)
            after = self.encode(rendered.rpartition("Answer")[2])
            if len(after) and int(after[0]) in self._inner.all_special_ids:
                found.append(int(after[0]))
        return tuple(dict.fromkeys(token for token in found if token is not None))

    def _decode_by_prefixes(self, token_ids: IntArray) -> tuple[str, IntArray]:
        """For tokenizers whose text is not a sum of bytes: decode every prefix (quadratic in N)."""
        ids = token_ids.tolist()

        def plain(count: int) -> str:
            return str(self._inner.decode(ids[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False))

        text, ends, reached = plain(len(ids)), np.empty(len(ids), dtype=np.int64), 0
        for place in range(len(ids)):
            reached = max(reached, _common(plain(place + 1), text))
            ends[place] = reached
        if len(ids):
            ends[-1] = len(text)
        return text, ends


def _common(a: str, b: str) -> int:
    """Length of the common prefix."""
    if b.startswith(a):
        return len(a)
    return next(place for place, (x, y) in enumerate(zip(a, b + "\0", strict=False)) if x != y)


def _byte_table(tokenizer: PreTrainedTokenizerBase, size: int) -> tuple[list[bytes] | None, bool]:
    """([size] bytes of every token, b"" for special ones; whether one leading space is dropped), or None if not so."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    if not decoder:
        return None, False
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [part["type"] for part in parts]
    spell: Callable[[str], bytes]
    if kinds == ["ByteLevel"]:
        alphabet = _byte_alphabet()

        def spell(token: str) -> bytes:
            known = [alphabet.get(char) for char in token]
            return token.encode() if None in known else bytes(known)  # type: ignore[arg-type]
    elif "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:

        def spell(token: str) -> bytes:
            if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
                return bytes([int(token[3:5], 16)])
            return token.replace("\u2581", " ").encode()
    else:
        return None, False
    table = [b""] * size
    for token, place in tokenizer.get_vocab().items():
        table[place] = spell(token)
    for place, added in tokenizer.added_tokens_decoder.items():
        table[place] = b"" if added.special else added.content.encode()
    for place in tokenizer.all_special_ids:
        table[place] = b""
    return table, any(part["type"] == "Strip" and part.get("start", 0) > 0 for part in parts)


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (Radford et al. 2019): {character: byte}."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
