"""The C file against formulas in float64 and against torch, and life without a compiler."""

import math

import pytest
import torch

from jurat.engine.llama import kernels
from jurat.engine.llama.kernels import NativeKernels, TorchKernels, choose, native_library
from jurat.engine.llama.sampler import _Bundle, _turns
from jurat.engine.llama.weights import Shape

ULP = 2.0**-8
"""Relative distance of neighbouring bfloat16 numbers, at most."""


@pytest.fixture
def native():
    library = native_library()
    if library is None:
        pytest.skip("no C compiler here: torch does this work")
    return NativeKernels(library, 1e-5)


@pytest.mark.parametrize("rows", [1, 5, 300])
@pytest.mark.parametrize("added", [False, True])
def test_add_norm(native, rows, added):
    torch.manual_seed(rows)
    x, y, weight = torch.randn(rows, 272) * 3, torch.randn(rows, 272).bfloat16(), torch.randn(272)
    wanted = x.double() + (y.double() if added else 0.0)
    stream = x.clone()
    found = native.add_norm(stream, y if added else None, weight)
    torch.testing.assert_close(stream.double(), wanted, rtol=1e-6, atol=1e-6)
    wanted = wanted / (wanted.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(found.double(), wanted, rtol=ULP, atol=1e-30)


@pytest.mark.parametrize("rows", [1, 300])
def test_gated(native, rows):
    """Over the whole range of bfloat16, and where exp leaves that of float32."""
    torch.manual_seed(rows)
    gate_up = (torch.randn(rows, 2 * 240) * 10 ** torch.linspace(-6, 3, 480)).bfloat16()
    gate_up[0, :4] = torch.tensor([-200.0, 200.0, -88.0, 0.0])
    gate, up = gate_up.double().chunk(2, -1)
    torch.testing.assert_close(native.gated(gate_up).double(), gate * gate.sigmoid() * up, rtol=ULP, atol=1e-30)
    assert native.gated(torch.full((1, 2), math.nan).bfloat16()).isnan().all()


def shape_of(heads: int, kv: int, d: int) -> Shape:
    return Shape(layers=2, hidden=heads * d, heads=heads, kv_heads=kv, head_dim=d, ff=8, vocab=9, rms_eps=1e-5, tied=True,
                 inv_freq=tuple(0.1**i for i in range(d // 2)), max_length=512)  # fmt: skip


def wanted(shape, qkv, turns, keys, values):
    """[H d] float64 attention of one row; keys and values [K, N, d] as cached, this token's among them."""
    q = torch.view_as_complex(qkv[: shape.heads].double().unflatten(-1, (-1, 2))) * turns.to(torch.complex128)
    q = torch.view_as_real(q).flatten(1).view(shape.kv_heads, -1, shape.head_dim)
    return ((q @ keys.double().mT).softmax(-1) @ values.double()).flatten()


@pytest.mark.parametrize(("heads", "kv", "d"), [(6, 2, 8), (9, 3, 64), (4, 4, 128), (5, 1, 24)])
def test_attention_with_ragged_prompts_and_rows_that_end(native, heads, kv, d):
    torch.manual_seed(d)
    shape, lengths, counts = shape_of(heads, kv, d), torch.tensor([3, 9, 5]), [4, 4, 3]
    bundles = [_Bundle(shape, lengths, counts, layers=2, dtype=torch.bfloat16) for _ in range(2)]
    prompts = [(torch.randn(3, kv, 9, d).bfloat16(), torch.randn(3, kv, 9, d).bfloat16()) for _ in range(2)]
    for bundle in bundles:
        for layer, (k, v) in enumerate(prompts):
            bundle.store_prompt(layer, k, v)
    table, by_torch = _turns(shape, 64, torch.device("cpu")), TorchKernels(torch.bfloat16, 1e-5)
    for t in range(20):
        for bundle in bundles:
            bundle.begin_step(views=bundle is bundles[1])
        turns = table[bundles[0].positions()][:, None]
        for layer in range(2):
            qkv = torch.randn(len(turns), heads + 2 * kv, d).bfloat16() / d**0.25
            found, same = (b.attend(layer, qkv, turns, k) for b, k in zip(bundles, (native, by_torch), strict=True))
            torch.testing.assert_close(found, same, rtol=0.05, atol=0.05)
            for row in range(len(turns)):
                bundle, place = bundles[0], int(bundles[0].places[row])
                group, inside = divmod(place, bundle.per_group)
                cached = [
                    torch.cat([p[group * kv : (group + 1) * kv, : bundle.lengths[group]],
                               o.view(-1, kv, bundle.per_group, *o.shape[1:])[group, :, inside, : t + 1]], 1)
                    for p, o in ((bundle.prompt_keys[layer], bundle.keys[layer]),
                                 (bundle.prompt_values[layer], bundle.values[layer]))
                ]  # fmt: skip
                exact = wanted(shape, qkv[row], turns[row], *cached)
                torch.testing.assert_close(found[row].double(), exact, rtol=ULP, atol=1e-5)
        for bundle in bundles:
            bundle.own += 1
            if t in (4, 9, 13):
                bundle.keep(range(0, len(bundle.places), 2 if t > 4 else 3))
    assert bundles[0].groups < 3, "the cache was never packed"


def test_torch_does_it_without_a_compiler(monkeypatch, tmp_path):
    for compiler in ("/no/such/compiler", "false"):
        monkeypatch.setenv("CC", compiler)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        native_library.cache_clear()
        assert choose(torch.bfloat16, torch.device("cpu"), 1e-5).name == "torch"
    native_library.cache_clear()


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "jurat").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_library.cache_clear()
    assert kernels.native_library() is None
    native_library.cache_clear()


def test_a_cache_that_others_can_write_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "jurat").mkdir()
    (tmp_path / "jurat").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_library.cache_clear()
    assert kernels.native_library() is None
    native_library.cache_clear()


def test_float32_and_other_devices_stay_with_torch():
    assert choose(torch.float32, torch.device("cpu"), 1e-5).name == "torch"
    assert choose(torch.bfloat16, torch.device("meta"), 1e-5).name == "torch"
