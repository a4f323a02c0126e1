"""Prompts by the template, text with exact offsets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.engine.tiny import save_tiny
from jurat.engine.tokenizer import HFTokenizer
from jurat.platform.errors import ModelError
from jurat.platform.types import Message

USER = (Message(role="user", content="What is 12 + 7?"),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden=64, layers=1)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return HFTokenizer(folder)


def changed(folder, tmp_path, *, template=None, config=None, generation=None):
    """A copy of the folder with another template or configuration."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if template is not None:
        (tmp_path / "chat_template.jinja").unlink()
        if template:
            (tmp_path / "chat_template.jinja").write_text(template)
    for name, change in (("config.json", config), ("generation_config.json", generation)):
        if change:
            content = json.loads((tmp_path / name).read_text()) | change
            (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def names(tokenizer, ids):
    return [tokenizer._inner.convert_ids_to_tokens(int(token)) for token in ids]


def test_prompt_ends_where_the_reply_begins(tokenizer):
    found = names(tokenizer, tokenizer.encode_prompt(USER))
    assert found[0] == "<|user|>" and found[-2:] == ["<|end|>", "<|assistant|>"]
    assert [name for name in found if name.isdigit()] == ["1", "2", "7"]


def test_a_template_that_opens_a_thinking_tag_leaves_it_in_the_prompt(folder, tmp_path):
    template = (
        "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
    )
    found = HFTokenizer(changed(folder, tmp_path, template=template))
    text = found._inner.decode(found.encode_prompt(USER).tolist())
    assert text.endswith("<|assistant|><think>\n")


def test_without_a_template_contents_are_joined(folder, tmp_path):
    found = HFTokenizer(changed(folder, tmp_path, template=""))
    assert not found.has_chat_template
    ids = found.encode_prompt((Message(role="system", content="Be brief."), *USER))
    assert found.decode(ids)[0] == "Be brief.\nWhat is 12 + 7?"


def test_a_template_that_refuses_a_role_says_so(folder, tmp_path):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}{{ messages[0].content }}"
    found = HFTokenizer(changed(folder, tmp_path, template=template))
    with pytest.raises(ModelError, match="no system turn") as caught:
        found.encode_prompt((Message(role="system", content="x"), *USER))
    assert "prompt.system" in str(caught.value)


def test_every_end_mark_counts(folder, tmp_path):
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|system|>{% endfor %}"
    found = HFTokenizer(changed(folder, tmp_path, template=template, generation={"eos_token_id": [0, 7]}))
    assert set(found.eos_ids) == {0, 7, 3}


def test_ids_beyond_the_embedding_are_refused(folder, tmp_path):
    with pytest.raises(ModelError, match=r"ids up to 511, the embedding has 500 rows"):
        HFTokenizer(changed(folder, tmp_path, config={"vocab_size": 500}))


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_text_comes_back_and_offsets_count_whole_characters(tokenizer, text):
    ids = tokenizer.encode(text)
    found, ends = tokenizer.decode(ids)
    for special in ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>"):
        text = text.replace(special, "")
    assert found == text
    assert len(ends) == len(ids) and (np.diff(ends, prepend=0) >= 0).all()
    assert (ends[-1] if len(ends) else 0) == len(text)
    for place in range(len(ids)):
        assert found[: ends[place]] == tokenizer.decode(ids[: place + 1])[0].rstrip("\ufffd")[: ends[place]]


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 511), max_size=40))
def test_any_tokens_decode_as_transformers_does(tokenizer, ids):
    found, ends = tokenizer.decode(np.array(ids, dtype=np.int64))
    assert found == tokenizer._inner.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert (np.diff(ends, prepend=0) >= 0).all() and (ends[-1] if ids else 0) == len(found)


def test_a_character_of_several_tokens_counts_after_its_last(tokenizer):
    ids = tokenizer.encode("é1")
    assert tokenizer.decode(ids)[1].tolist() == [0, 1, 2]
    text, ends = tokenizer.decode(ids[:1])
    assert text == "\ufffd" and ends.tolist() == [1]


def sentencepiece_like(tmp_path):
    """A tokenizer of the other family: spaces as U+2581, unknown characters as bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    vocab = {"<unk>": 0, "</s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    for piece in ("\u2581", *"abc12", "ab", "\u2581ab"):
        vocab[piece] = len(vocab)
    inner = Tokenizer(
        models.BPE(vocab=vocab, merges=[("a", "b"), ("\u2581", "ab")], unk_token="<unk>", byte_fallback=True)
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>").save_pretrained(tmp_path)
    LlamaConfig(vocab_size=len(vocab), max_position_embeddings=64).save_pretrained(tmp_path)
    return HFTokenizer(tmp_path)


def test_byte_fallback_tokenizers_and_decoding_by_prefixes_agree(tmp_path):
    found = sentencepiece_like(tmp_path)
    assert found._pieces is not None
    for text in ("ab c", "é", "a \u4f60b 1", "  ab", ""):
        ids = found.encode(text)
        decoded, ends = found.decode(ids)
        assert decoded == text
        slow, slow_ends = found._decode_by_prefixes(ids)
        assert slow == text and slow_ends.tolist() == ends.tolist()
