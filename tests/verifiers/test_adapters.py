"""A registered verifier as TRL, verl and plain code call a reward."""

from __future__ import annotations

import pickle
import types
from pathlib import Path

import pytest

from jurat import adapters
from jurat.platform.errors import ConfigError

HOSTILE = Path(__file__).parent / "rules_files" / "hostile.py"


def test_trl_s_call_with_texts_and_columns():
    """As GRPOTrainer._calculate_rewards calls it: keywords, one list a column, extras that are no columns."""
    reward = adapters.trl_reward("math")
    made = reward(
        prompts=["1/2 as a decimal?", "2+2?", "2+2?"],
        completions=[r"so \boxed{0.5}", "The answer is 5.", "no idea at all"],
        completion_ids=[[1, 2], [3], [4]],
        answer=["1/2", "4", "4"],
        level=[1, 2, 2],
        trainer_state=object(),
        log_extra=print,
        log_metric=print,
    )
    assert made == [1.0, 0.0, 0.0] and reward.__name__ == "math"


def test_trl_s_call_with_conversations():
    reward = adapters.trl_reward("math", gold="gold")
    prompt = [{"role": "system", "content": "be short"}, {"role": "user", "content": "7+5?"}]
    completion = [{"role": "assistant", "content": "It is 12."}]
    assert reward(prompts=[prompt], completions=[completion], completion_ids=[[1]], gold=["12"]) == [1.0]


def test_no_verdict_is_none_for_trl_and_not_a_wrong_answer():
    reward = adapters.trl_reward("hostile", user_files=[HOSTILE])
    try:
        given = ["7", "!raise", "!nan", "8", "!exit", "!none"]
        assert reward(prompts=[""] * 6, completions=given, answer=["7"] * 6) == [1.0, None, None, 0.0, None, None]
    finally:
        reward.close()


def test_a_missing_column_and_unequal_counts_are_refused():
    reward = adapters.trl_reward("math")
    with pytest.raises(ConfigError, match="no column 'answer'") as told:
        reward(prompts=["p"], completions=["c"], gold=["g"])
    assert "columns: gold" in told.value.fix
    with pytest.raises(Exception, match="1 prompts, 2 completions, 1 references"):
        reward(prompts=["p"], completions=["c", "d"], answer=["g"])


def test_the_installed_trl_takes_it():
    trainer = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed; its call is tested above")
    torch = pytest.importorskip("torch")
    reward = adapters.trl_reward("math")
    space = types.SimpleNamespace
    fake = space(
        accelerator=space(device=torch.device("cpu"), is_main_process=True), state=space(global_step=0),
        args=space(report_to=[]), reward_funcs=[reward], reward_func_names=[reward.__name__],
        reward_processing_classes=[None], environments=None, chat_template_kwargs={},
        _log_completion_extra=None, _log_metric=None,
    )  # fmt: skip
    inputs = [{"prompt": "1/2?", "answer": "1/2"}]
    made = trainer.GRPOTrainer._calculate_rewards(fake, inputs, ["1/2?"], ["0.5"], [[1]])
    assert made.tolist() == [[1.0]]


def test_verl_s_call():
    score = adapters.verl_score("math", undecided=0.0)
    made = score(data_source="gsm8k", solution_str="#### 72", ground_truth="72", extra_info={"prompt": "q", "index": 3})
    assert (made["score"], made["decided"], made["pred"]) == (1.0, True, "72")
    assert score("gsm8k", "#### 71", "72")["score"] == 0.0
    lost = adapters.verl_score("hostile", undecided=-0.5, user_files=[HOSTILE])
    try:
        made = lost("x", "!raise", "7", None, reward_router_address="ignored")
        assert (made["score"], made["decided"], made["status"]) == (-0.5, False, "error")
    finally:
        lost.close()


def test_plain_and_pickled():
    score = adapters.plain("number", args={"tolerance": 0.01})
    assert [score(text, "3.14") for text in ("3.145", "3.2")] == [1.0, 0.0]
    again = pickle.loads(pickle.dumps(score))
    assert again("3.145", "3.14") == 1.0
