"""A small model with random weights and its tokenizer, made in code: for tests, kill tests and the recipe ``tiny``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 512
CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEXT = """
What is the sum of these two numbers? What is the difference? What is the product? What is the total? Work out.
How many are left? How many in all? How much does she have now? How much money does he have left?
Answer with just the number. Give only the answer. Calculate. Compute. Find the value of. number number answer
plus minus times divided by equals. Add and Subtract from. Multiply by. Take away. just just Answer Answer
Tom has apples. He buys more apples and gives away some of them. Anna has books and gets another from a friend.
There are boxes with eggs in each box. Each bag holds marbles. A shop sells pens, pencils, coins, cards, stickers.
She then eats, loses, finds, uses, sells, makes, reads, picks. After that, together, altogether, total, each, every.
Sam Ben Mia Lily Jack Emma Noah Ella Max Zoe dollars cents hours minutes days pages cookies oranges toys flowers
Let us think step by step. First, we have. Then we add. So the answer is. That leaves. The answer: Result = number
"""


def save_tiny(folder: Path, *, seed: int = 0, hidden: int = 128, layers: int = 4) -> None:
    """Write an ordinary Hugging Face folder: a Llama of about a million parameters, float32; equal for equal seeds."""
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    tensors = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures, config.dtype = ["LlamaForCausalLM"], "float32"
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=end, pad_token_id=end).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over the words of simple arithmetic: each digit is one token, any other text is spelt."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=1,
        show_progress=False,
    )
    inner.train_from_iterator(TEXT.strip().splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=list(SPECIAL[1:]),
        model_max_length=1024,
    )
    tokenizer.chat_template = CHAT
    return tokenizer
