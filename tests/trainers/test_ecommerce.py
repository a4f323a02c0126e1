"""The recipe ``ecommerce``: its rules, its data, its three stages, and the day on which a rule changes (docs/ecommerce.md)."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from jurat.api import cli, recipes
from jurat.platform.errors import RewardDrift
from jurat.platform.runs.store import Store
from jurat.trainers import launch
from jurat.verifiers.judge import build_judge
from jurat.verifiers.once import problem_of
from screens import Screen

FOLDER = Path(str(recipes.shipped()["ecommerce"])).parent
RULES = FOLDER / "rules.py"


def rows(name, folder=FOLDER):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture
def jurat(capsys, tmp_path, monkeypatch):
    """One command in this process -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("JURAT_HOME", str(tmp_path / "home"))

    def call(*args):
        capsys.readouterr()
        code = cli.run([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def shop(jurat, tmp_path):
    """A copy of the recipe, as a user makes it who means to change a rule."""
    folder = tmp_path / "shop"
    code, out, _ = jurat("recipes", "copy", "ecommerce", folder)
    assert (code, out) == (0, f"{folder}/recipe.yaml\n")
    assert sorted(p.name for p in folder.iterdir()) == [
        "generate.py", "held_out.jsonl", "recipe.yaml", "rules.py", "train.jsonl",
    ]  # fmt: skip
    code, _, err = jurat("recipes", "copy", "ecommerce", folder)
    assert code == 2 and "is there already" in err
    return folder


def shorten(shop):
    """The same recipe with stages of two steps."""
    path = shop / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    for part in recipe["data"].values():
        part["size"] = 10
    recipe |= {
        "sampling": {"max_new_tokens": 6},
        "engine": {"dtype": "float32", "threads": 1},
        "evaluate": {"final_problems": 4, "samples": 1},
        "checkpoint": {"every": 1, "keep": 5},
    }
    for stage in recipe["stages"]:
        stage |= {"steps": 2, "prompts_per_step": 2}
        if "allocation" in stage:
            stage["allocation"] = {"samples_per_prompt": 2}
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_the_data_are_what_the_script_writes(shop):
    before = {name: rows(name, shop) for name in ("train", "held_out")}
    for name in before:
        (shop / f"{name}.jsonl").unlink()
    subprocess.run([sys.executable, shop / "generate.py"], check=True, env={**os.environ, "PYTHONPATH": _path()})
    assert {name: rows(name, shop) for name in before} == before
    train, held_out = ({row["question"] for row in each} for each in before.values())
    assert (len(train), len(held_out), len(train & held_out)) == (1200, 100, 0)


def _path():
    return os.pathsep.join(sys.path)


def scores(pairs, folder=FOLDER):
    """[(order, answer)] -> [{member: score}]"""
    recipe, _ = recipes.load(str(folder / "recipe.yaml"))
    with closing(build_judge(recipe.reward, user_files=[folder / "rules.py"])) as judge:
        judge.bind([])

        async def all_of():
            made = [judge.judge(problem_of(order, prompt="", verifier="order"), said) for order, said in pairs]
            return [dict(each.reward.parts) for each in await asyncio.gather(*made)]

        return asyncio.run(all_of())


GOOD = {"policy_facts": 1.0, "tone": 1.0, "all_of": 1.0, "promises": 1.0}


def test_the_rules():
    said = [
        ("promotion 60", "Hello! You pay 54 euros. Thank you!", {}),
        ("promotion 40", "Hello! You pay 40 euros. Thank you!", {}),
        ("promotion 60", "Hello! You pay 60 euros. Thank you!", {"policy_facts": 0.0}),
        ("promotion 60", "Hello! You pay 60 or 54 euros. Thank you!", {"policy_facts": 0.0}),
        ("shipping 100", "Hello! Shipping is free. Thank you!", {}),
        ("shipping 100", "Hello! Shipping is free or 5 euros. Thank you!", {"policy_facts": 0.0}),
        ("shipping 80", "Hello! Shipping is free. Thank you!", {"policy_facts": 0.0}),
        ("returns 12", "Hello! Day 42 is the last. Obviously. Thank you!", {"tone": 0.0}),
        ("returns 12", "Hello! Day 42, we guarantee it. Thank you!", {"promises": 0.0}),
        ("returns 12", "Hello! Hello! Day 42 is the last. Thank you!", {"all_of": 0.0}),
        ("returns 12", "Hello! Day 42 is the last day of it.", {"all_of": 0.0}),
        ("returns 12", "Hello! " + "Day 42 " + "is the very last day of all, " * 4 + "Thank you!", {"all_of": 0.0}),
        ("returns 12", "Hello! 42. Thank you!", {"all_of": 0.0}),
        ("warranty 2020", "Dear customer, it ends in 2022. Kind regards.", {}),
        ("delivery 9", "Good day! It comes on day 12. Have a nice day!", {}),
        ("warranty", "Hello! It has a warranty until 2022. Thank you!", {"policy_facts": None}),
    ]
    found = scores([(order, answer) for order, answer, _ in said])
    assert found == [{**GOOD, **but} for *_, but in said]


def test_what_is_preferred_keeps_every_rule_and_what_is_not_breaks_one():
    held_out = rows("held_out")
    found = scores([(row["answer"], row[kind]) for kind in ("chosen", "rejected") for row in held_out])
    assert found[:100] == [GOOD] * 100
    assert all(min(each.values()) == 0 for each in found[100:])
    broken = {member for each in found[100:] for member, score in each.items() if score == 0}
    assert broken == set(GOOD)


@pytest.mark.soak
def test_a_rule_changes_the_same_day(shop, jurat, tmp_path):
    """docs/ecommerce.md, in small: train, go on online, change the promotion, be refused, accept, and see what it touched."""
    path, home = shorten(shop), tmp_path / "home"
    recipe, base = recipes.load(str(path))
    assert launch.train(recipe, home=home, base=base, reporter=Screen(), run_id="base").state == "finished"
    store = Store.open(None, home)
    measured = [m.result for m in store.evaluations(store.run("base"))]
    assert [(e.stage, e.step) for e in measured] == [
        ("sft", 0), ("sft", 2), ("dpo", 0), ("dpo", 2), ("grpo", 0), ("grpo", 2),
    ]  # fmt: skip
    assert all([*e.members] == [*GOOD] and e.members["policy_facts"] == e.accuracy.value for e in measured)

    code, out, _ = jurat("runs", "fork", "base", "--run-id", "online", "--json")
    assert (code, json.loads(out)["parent"]) == (0, "base")
    online = {"home": home, "base": base, "resume": "online"}
    assert launch.train(None, reporter=Screen(stop=1), **online).state == "interrupted"

    (tmp_path / "before.py").write_text(RULES.read_text())
    (shop / "rules.py").write_text(RULES.read_text().replace("PROMOTION_PERCENT = 10", "PROMOTION_PERCENT = 15"))
    for name, same in (("policy_facts", False), ("promises", True)):
        code, out, _ = jurat("verifiers", "diff", f"{tmp_path}/before.py::{name}", f"{shop}/rules.py::{name}", "--json")
        assert (code, json.loads(out)["same"]) == (0, same)
    page = tmp_path / "drift.html"
    asked = ("--from", "policy_facts@1", "--to", f"{shop}/rules.py::policy_facts", "--runs", "base", "-o", page, "--json")
    code, out, err = jurat("rescore", *asked)
    report = json.loads(out)
    assert code == 0 and "PROMOTION_PERCENT" not in err and page.read_text().startswith("<!doctype html>"), err
    assert report["counts"]["covered"] == 8 and report["verdict"]["word"] in ("compatible", "minor", "breaking")
    code, _, err = jurat("train", "--resume", "online")
    assert code == 4 and "the reward of run online has changed" in err and "PROMOTION_PERCENT" in err, err
    assert launch.train(None, reporter=Screen(), accept_reward_change=True, **online).state == "finished"

    [told] = [e for e in store.events(store.run("online")) if e.kind == "reward_change_accepted"]
    assert "PROMOTION_PERCENT" in told.payload["difference"]
    code, out, _ = jurat("verifiers", "versions", "policy_facts", "--json")
    assert [v["names"] for v in json.loads(out)["versions"]] == [["policy_facts@2"], ["policy_facts@1"]]
    code, out, _ = jurat("diff", "base", "online", "--json")
    assert code == 0 and "PROMOTION_PERCENT" in out
    code, out, _ = jurat("lineage", "affected", "--verifier", "policy_facts@1", "--json")
    tainted = {n["id"] for n in json.loads(out)["nodes"] if n["kind"] == "checkpoint"}
    code, out, _ = jurat("lineage", "affected", "--verifier", "policy_facts@2", "--json")
    after = {n["id"] for n in json.loads(out)["nodes"] if n["kind"] == "checkpoint"}
    by = {
        (run, c.stage, c.ref.step): c.ref.digest
        for run in ("base", "online")
        for c in store.checkpoints(store.run(run))
    }
    assert tainted == set(by.values())
    assert after == {by["online", "grpo", 2]}
    store.close()


def test_rules_that_are_edited_while_a_run_goes_on_are_refused_at_its_next_stage(shop, tmp_path):
    recipe, base = recipes.load(str(shorten(shop)), ["data.held_out=null"])
    rules = shop / "rules.py"
    edit = {1: lambda: rules.write_text(rules.read_text().replace("RETURN_DAYS = 30", "RETURN_DAYS = 14"))}
    with pytest.raises(RewardDrift, match="the reward of this stage is sha256:") as caught:
        launch.train(recipe, home=tmp_path / "home", base=base, reporter=Screen(after=edit), run_id="r")
    assert caught.value.exit_code == 4
    store = Store.open(None, tmp_path / "home")
    assert (store.run("r").state, [c.stage for c in store.checkpoints(store.run("r"))]) == ("failed", ["sft", "sft"])
    store.close()
