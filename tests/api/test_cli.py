"""The command line itself: what is loaded, what is said when something is wrong, and what may not change unnoticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import jurat as package
from jurat.api import cli, terminal

GOLDEN = Path(__file__).parent / "golden" / "commands.txt"


# ---- light -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"], ["recipes", "show", "tiny"], ["nonsense"]])
def test_light(args: list[str]) -> None:
    """Commands that only talk load no torch, no database and no arrays. (typer itself reads options with pydantic.)"""
    code = (
        "import sys\nfrom jurat.api import cli\ncli.run(sys.argv[1:])\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stderr.splitlines()[-1].replace("'", '"')))
    heavy = {
        "torch",
        "transformers",
        "sqlalchemy",
        "alembic",
        "sympy",
        "pyarrow",
        "duckdb",
        "matplotlib",
        "numpy",
        "yaml",
    }
    assert loaded.isdisjoint(heavy), loaded & heavy


def test_module_and_script_are_one(tmp_path: Path) -> None:
    """``python -m jurat`` works, from a folder that holds no jurat, and a pipe gets plain text."""
    done = subprocess.run([sys.executable, "-m", "jurat", "version"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert package.__version__ in done.stdout and "\x1b" not in done.stdout


def test_version_alone(jurat: Any) -> None:
    done = jurat("--version")
    assert (done.code, done.out) == (0, f"jurat {package.__version__}\n")


# ---- wrong usage -------------------------------------------------------------------------------------------------


def test_unknown_command_names_the_nearest(jurat: Any) -> None:
    done = jurat("trian", "tiny")
    assert done.code == 2
    assert done.err.splitlines() == [
        "jurat: no command is called 'trian'. Did you mean 'train'?",
        "  where: jurat",
        "  fix:   jurat --help lists the commands",
    ]
    assert done.out == ""


def test_unknown_option(jurat: Any) -> None:
    done = jurat("train", "tiny", "--nonsense")
    assert done.code == 2
    assert "--nonsense" in done.err and "jurat train --help" in done.err and "Traceback" not in done.err


def test_unknown_subcommand(jurat: Any) -> None:
    done = jurat("recipes", "shwo")
    assert done.code == 2
    assert "'shwo'" in done.err and "show" in done.err


def test_missing_argument(jurat: Any) -> None:
    done = jurat("plot")
    assert done.code == 2
    assert "Missing argument" in done.err


def test_error_is_json_too(jurat: Any) -> None:
    done = jurat("train", "tinny", "--json")
    assert done.code == 2
    assert done.json == {
        "error": {
            "what": "no recipe is called 'tinny'. Did you mean 'tiny'?", "where": "RECIPE",
            "fix": done.json["error"]["fix"], "exit_code": 2,
        }
    }  # fmt: skip


def test_no_argument_is_help(jurat: Any) -> None:
    done = jurat()
    assert done.code == 0 and "Usage" in done.out and "train" in done.out


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_home_may_stand_anywhere(jurat: Any, tmp_path: Path, place: int) -> None:
    args = ["runs", "ls", "--json"]
    args[place:place] = ["--home", str(tmp_path / "elsewhere")]
    assert jurat(*args).code == 0
    assert terminal.home() == tmp_path / "elsewhere"


def test_values_are_not_taken_for_global_options() -> None:
    assert cli.to_front(["a", "--home=x", "--", "--home", "y"]) == ["--home=x", "a", "--", "--home", "y"]
    assert cli.to_front(["a", "--home"]) == ["--home", "a"]


def test_unexpected_error_is_kept_whole(jurat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for the person, the traceback in a file; with --debug on the screen."""

    def broken() -> dict[str, Path]:
        raise ZeroDivisionError("by \x1b[31mhand")

    monkeypatch.setattr("jurat.api.recipes.shipped", broken)
    done = jurat("recipes", "ls")
    assert done.code == 1
    assert "unexpected error: ZeroDivisionError: by \\x1b[31mhand" in done.err
    assert "Traceback" not in done.err
    (log,) = (tmp_path / "home" / "logs").iterdir()
    assert str(log) in done.err
    kept = log.read_text()
    assert "Traceback" in kept and "command: jurat recipes ls" in kept and package.__version__ in kept
    assert "Traceback" in jurat("recipes", "ls", "--debug").err


def test_home_that_cannot_be_written(jurat: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = jurat("train", recipe(tmp_path), "--home", blocked / "home")
    assert done.code == 1
    assert "cannot make the home folder" in done.err and "--home" in done.err


# ---- wrong recipes and data --------------------------------------------------------------------------------------


def recipe(folder: Path, text: str = "", **data: str) -> Path:
    source = data.get("train", '{source: "generated:plain", levels: [1], size: 8}')
    path = folder / "recipe.yaml"
    path.write_text(f"model: {data.get('model', 'tiny-random')}\ndata:\n  train: {source}\n{text}")
    return path


def test_unknown_key_names_nearest_and_line(jurat: Any, tmp_path: Path) -> None:
    path = recipe(tmp_path, "sampling:\n  temprature: 1.0\n")
    done = jurat("train", path)
    assert done.code == 2
    assert "unknown key 'sampling.temprature' (line 5). Did you mean 'temperature'?" in done.err
    assert f"where: {path}:5" in done.err


def test_wrong_value_names_key_and_line(jurat: Any, tmp_path: Path) -> None:
    done = jurat("train", recipe(tmp_path, "steps: many\n"))
    assert done.code == 2
    assert "steps: " in done.err and "(line 4)" in done.err and "'many'" in done.err


def test_not_yaml(jurat: Any, tmp_path: Path) -> None:
    done = jurat("train", recipe(tmp_path, "steps: [1, 2\n"))
    assert done.code == 2 and "not YAML" in done.err and "recipe.yaml:" in done.err


def test_key_given_twice(jurat: Any, tmp_path: Path) -> None:
    done = jurat("train", recipe(tmp_path, "steps: 1\nsteps: 2\n"))
    assert done.code == 2 and "'steps' is given twice" in done.err and "line 5" in done.err


def test_unknown_algorithm_names_the_nearest(jurat: Any, tmp_path: Path) -> None:
    done = jurat("train", recipe(tmp_path, "algorithm: {name: grop}\n"))
    assert done.code == 2 and "Did you mean 'grpo'?" in done.err


@pytest.mark.parametrize(
    ("given", "said"),
    [("optim.lr", "--set needs key=value"), ("optim.lrr=1", "Did you mean 'lr'?"), ("optim.lr=-1", "optim.lr")],
)
def test_wrong_set(jurat: Any, given: str, said: str) -> None:
    done = jurat("train", "tiny", "--set", given)
    assert done.code == 2 and said in done.err


def test_what_set_got_wrong_is_no_fault_of_the_file(jurat: Any) -> None:
    done = jurat("train", "quickstart", "--set", "algorithm.loss=cliped")
    assert done.code == 2
    assert done.err.splitlines() == [
        "jurat: algorithm.loss: 'cliped' is none of clipped, gspo, cispo, plain. Did you mean 'clipped'?",
        "  where: --set algorithm.loss=cliped",
        "  fix:   write algorithm.loss: clipped",
    ]


def test_keys_of_a_source_are_told_alike(jurat: Any) -> None:
    done = jurat("eval", "smollm2", "generated", "--set", "fraction=[0.5]")
    assert (done.code, "fraction: got [0.5], expected a list of 2" in done.err) == (2, True)
    assert "where: --set fraction=[0.5]" in done.err
    done = jurat("datasets", "show", "generated", "--bad-rows", "skp")
    assert (done.code, "bad_rows: 'skp' is none of refuse, skip. Did you mean 'skip'?" in done.err) == (2, True)


def test_missing_recipe_file(jurat: Any, tmp_path: Path) -> None:
    recipe(tmp_path)
    done = jurat("train", tmp_path / "recipes.yaml")
    assert done.code == 2
    assert "no recipe file" in done.err and "Did you mean 'recipe.yaml'?" in done.err


def test_missing_data_file(jurat: Any, tmp_path: Path) -> None:
    done = jurat("train", recipe(tmp_path, train="{source: ./none.jsonl}"))
    assert done.code == 2
    assert "no such data file" in done.err and "none.jsonl" in done.err


@pytest.mark.parametrize("name", ["nosuch.csv", "nosuch.json"])
def test_a_file_of_another_kind_is_not_looked_for_on_the_hub(jurat: Any, tmp_path: Path, name: str) -> None:
    done = jurat("datasets", "show", name)
    assert done.code == 2
    assert f"no such data file or folder, and {Path(name).suffix} files are not read" in done.err
    assert f"where: {name}" in done.err and "give a .jsonl or .parquet file" in done.err
    (tmp_path / name).write_text("question,answer\n")
    there = jurat("datasets", "show", tmp_path / name)
    assert there.code == 2 and "convert it to .jsonl" in there.err and "no such" not in there.err


@pytest.mark.parametrize("given", [(), ("--answer", "1", "--completion", "1")])
def test_verify_takes_one_text(jurat: Any, given: tuple[str, ...]) -> None:
    done = jurat("verify", "math", "--gold", "1", *given)
    assert done.code == 2
    assert "or --completion" in done.err and "where: jurat verify math" in done.err and "answer=" not in done.err


def test_a_failed_gate_is_one_json_document(jurat: Any, tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text('{"id": "a", "gold": "1", "pred": "2", "expected": true, "form": "answer"}\n')
    done = jurat("audit", "math", tmp_path / "cases.jsonl", "--min-accuracy", 1, "--json")
    assert done.code == 3
    assert done.json["gate"]["exit_code"] == 3 and "--min-accuracy" in done.err
    passed = jurat("audit", "math", tmp_path / "cases.jsonl", "--json")
    assert (passed.code, passed.json["gate"]) == (0, None)


def test_empty_data_set(jurat: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    done = jurat("train", recipe(tmp_path, train="{source: ./empty.jsonl}"))
    assert done.code == 2
    assert "no problem" in done.err or "empty" in done.err, done.err


def test_bad_row_names_file_and_line(jurat: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n{"question": "1+2?"}\n')
    done = jurat("train", recipe(tmp_path, train="{source: ./rows.jsonl}"))
    assert done.code == 2
    assert "rows.jsonl:2" in done.err, done.err


def test_prompts_longer_than_the_context(jurat: Any, tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"question": "1 + 1 = ? " * 900, "answer": "2"}) + "\n")
    path = recipe(tmp_path, train="{source: ./long.jsonl}")
    done = jurat("train", path, "--set", "data.max_prompt_tokens=100000")
    assert done.code == 2
    assert "1 of 1 prompts of data.train are longer than" in done.err and "long.jsonl:1" in done.err


def test_unknown_model_names_the_nearest(jurat: Any) -> None:
    done = jurat("eval", "smolm2", "generated")
    assert done.code == 2
    assert "no model 'smolm2'. Did you mean 'smollm2'?" in done.err


def test_model_that_is_not_fetched(jurat: Any) -> None:
    done = jurat("eval", "smollm2", "generated")
    assert done.code == 2 and "jurat models fetch smollm2" in done.err


@pytest.fixture
def model(jurat: Any, tmp_path: Path) -> Path:
    """The tiny model as a folder."""
    done = jurat("models", "fetch", "tiny-random", "--json")
    assert done.code == 0
    return Path(done.json["folder"]).rename(tmp_path / "model")


def test_model_folder_without_tokenizer(jurat: Any, tmp_path: Path, model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    done = jurat("train", recipe(tmp_path), "--set", f"model={model}")
    assert done.code == 2
    assert "no tokenizer: tokenizer.json not found" in done.err and str(model) in done.err


def test_vocabulary_mismatch(jurat: Any, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    done = jurat("eval", model, "generated:plain", "--limit", 2)
    assert done.code == 2
    assert "vocabulary mismatch" in done.err and "100 rows" in done.err


def test_failed_train_ends_with_one_json_line(jurat: Any, tmp_path: Path) -> None:
    done = jurat("train", recipe(tmp_path, model="smolm2"), "--json")
    assert done.code == 2
    assert (done.json["state"], done.json["checkpoint"]) == ("failed", None)
    assert "smolm2" in done.json["error"]["what"]


# ---- recipes and models ------------------------------------------------------------------------------------------


def test_every_recipe_that_ships_is_listed_and_valid(jurat: Any, root: Path) -> None:
    rows = jurat("recipes", "ls", "--json").json
    assert {row["name"] for row in rows} == {
        *(path.stem for path in (root / "trainers/recipes").glob("*.yaml")),
        *(path.parent.name for path in (root / "trainers/recipes").glob("*/recipe.yaml")),
    }
    assert {"tiny", "quickstart", "gsm8k", "math"} <= {row["name"] for row in rows}
    assert all(row["about"] for row in rows), "each says what it is for"


def test_a_shown_recipe_can_be_used(jurat: Any, tmp_path: Path) -> None:
    for more in ((), ("--full",)):
        (tmp_path / "mine.yaml").write_text(jurat("recipes", "show", "tiny", *more).out)
        again = jurat("recipes", "show", tmp_path / "mine.yaml", "--json").json
        assert {**again, "name": "tiny"} == jurat("recipes", "show", "tiny", "--json").json


def test_a_recipe_shown_in_full_keeps_what_its_algorithm_brings(jurat: Any, tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("model: tiny-random\nalgorithm: dapo\ndata: {train: {source: generated}}\n")
    (tmp_path / "full.yaml").write_text(jurat("recipes", "show", tmp_path / "d.yaml", "--full").out)
    full = jurat("recipes", "show", tmp_path / "full.yaml", "--json").json
    assert (full["allocation"]["name"], full["updates_per_step"], full["algorithm"]["clip_high"]) == ("dapo", 4, 0.28)


def test_schema_knows_every_part(jurat: Any) -> None:
    schema = json.loads(jurat("recipes", "show", "--schema").out)
    assert schema["additionalProperties"] is False
    assert {"model", "data", "stages"} <= set(schema["properties"])


def test_models(jurat: Any) -> None:
    before = {row["name"]: row["here"] for row in jurat("models", "ls", "--json").json}
    assert before == {"tiny-random": False, "smollm2": False}
    assert jurat("models", "fetch", "tiny-random", "--json").json["fetched"] is True
    assert jurat("models", "fetch", "tiny-random", "--json").json["fetched"] is False
    assert {row["name"]: row["here"] for row in jurat("models", "ls", "--json").json}["tiny-random"] is True
    unknown = jurat("models", "fetch", "smollm")
    assert unknown.code == 2 and "Did you mean 'smollm2'?" in unknown.err


# ---- frozen surface ----------------------------------------------------------------------------------------------


def surface() -> str:
    """Every command with its arguments and options, one a line."""
    lines: list[str] = []

    def walk(command: Any, path: str) -> None:
        inner = getattr(command, "commands", None)
        if inner is not None:
            for name in sorted(inner):
                walk(inner[name], f"{path} {name}".strip())
        words = []
        for parameter in command.params:
            if parameter.name in ("help", "install_completion", "show_completion"):
                continue
            if parameter.param_type_name == "argument":
                words.append(parameter.name.upper() if parameter.required else f"[{parameter.name.upper()}]")
            else:
                words.append(
                    "/".join([*parameter.opts, *parameter.secondary_opts]) + ("" if parameter.is_flag else " ?")
                )
        if inner is None or words:
            lines.append(" ".join([path or "jurat", *sorted(words, key=lambda word: (word.startswith("-"), 0))]))

    walk(typer.main.get_command(cli.app), "")
    return "\n".join(sorted(lines)) + "\n"


def test_commands_and_options_are_as_agreed() -> None:
    """A changed command line breaks people's scripts: it is changed on purpose, with this file and the docs."""
    if os.environ.get("JURAT_UPDATE_GOLDEN"):
        GOLDEN.write_text(surface())
    assert surface() == GOLDEN.read_text(), "JURAT_UPDATE_GOLDEN=1 writes the list anew"


def test_every_command_has_json() -> None:
    missing = [line for line in surface().splitlines() if "--json" not in line and not line.startswith("jurat ")]
    assert missing == []


def test_every_command_is_in_the_manual(root: Path) -> None:
    manual = (root / "docs" / "command-line.md").read_text()
    commands = [line.split(" -")[0].split(" [")[0] for line in surface().splitlines() if not line.startswith("jurat ")]
    names = [" ".join(word for word in line.split() if not word.isupper()) for line in commands]
    assert [name for name in names if f"jurat {name}" not in manual] == []


# ---- what is printed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("\x07\x08\x7f\x9b", "\\x07\\x08\\x7f\\x9b"),
        ("a\r\nb", "a\\r\nb"),
        ("\u202eevil", "\\u{202e}evil"),
        ("\u200bx\ufe0f\U000e0041", "\\u{200b}x\\u{fe0f}\\u{e0041}"),
        ("\ud800", "\\u{d800}"),
        ("∑ é 漢 ±", "∑ é 漢 ±"),
    ],
)
def test_clean(given: str, shown: str) -> None:
    assert terminal.clean(given) == shown
    shown.encode()  # printable


def test_clean_to_one_line() -> None:
    assert terminal.clean("a\n b\t c", 80) == "a b c"
    assert terminal.clean("x" * 50, 10) == "x" * 9 + "…"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x"), 3: None})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": "x", "3": None}


# ---- estimate ----------------------------------------------------------------------------------------------------


def test_estimate_needs_a_config_and_nothing_else(jurat: Any, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = ["estimate", "quickstart", "--set", f"model={tmp_path}", "--set", "data.max_prompt_tokens=64"]
    found = jurat(*asked, "--memory", "8", "--json").json
    assert found["parameters"] == 134_515_008
    (stage,) = found["stages"]
    (place,) = stage["places"]
    assert place["processes"] == ["run"] and 3 * 2**30 < place["bytes"] < 5 * 2**30
    assert place["bytes"] == stage["processes"][0]["host_bytes"]
    said = jurat(*asked, "--memory", "8")
    assert "weights, float32" in said.out and "GiB at most of 8.0 GiB" in said.out
    refused = jurat(*asked, "--memory", "3", "--json")
    assert refused.code == 2
    assert "there are 3.0 GiB" in refused.json["error"]["what"]
    assert refused.json["error"]["fix"] == "set lora: {rank: 16}"
    parts = jurat(*asked, "--memory", "0.5", "--json")
    assert parts.code == 2 and json.loads(parts.out)["stages"][0]["processes"][0]["host"]
    assert json.loads(parts.out)["error"]["fix"]
    long = jurat(*asked, "--set", "sampling.max_new_tokens=8192", "--json")
    assert long.code == 2 and long.json["error"]["where"] == "sampling.max_new_tokens"
    assert "8192 tokens of this model's context" in long.json["error"]["what"]
    assert long.json["error"]["fix"].startswith("set it below 8192")
    unknown = jurat("estimate", "quickstart", "--set", f"model={tmp_path / 'nowhere'}")
    assert unknown.code == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("train quic", ["quickstart"]),
        ("train mine", ["mine.yaml"]),
        ("runs show ", ["latest", "r-1"]),
        ("train --resume r", ["r-1"]),
        ("models fetch smo", ["smollm2"]),
        ("eval my", ["my-model"]),
        ("verify ma", ["math"]),
    ],
)
def test_a_shell_is_offered_names(words: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "home" / "runs" / "r-1").mkdir(parents=True)
    (tmp_path / "home" / "models" / "my-model").mkdir(parents=True)
    (tmp_path / "mine.yaml").touch()
    line = f"jurat --home {tmp_path / 'home'} {words}"
    env = {
        **os.environ, "_JURAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "jurat"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == offered, done.stderr


def test_what_is_queued_starting_or_deleted(jurat: Any, tmp_path: Path) -> None:
    """A run whose process is not there yet hears of ``cancel`` all the same; one deleted over HTTP is marked."""
    from jurat.platform.db import tables as t
    from jurat.platform.recipe import Recipe
    from jurat.platform.runs import leases
    from jurat.platform.runs.store import Store

    recipe = Recipe.model_validate({"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}})
    store = Store.open(None, tmp_path / "home")
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="r", state="queued")
    refused = jurat("runs", "cancel", "r")
    assert refused.code == 2 and "it is queued" in refused.err and "/api/v1/runs/r:cancel" in refused.err
    lease = store.write(lambda c: leases.claim(c, "launcher"))
    assert lease is not None
    for _ in range(2):  # once more changes nothing
        assert jurat("runs", "cancel", "r", "--json").json == {"run": "r", "pid": None}
    assert (store.run("r").state, store.run("r").desired) == ("pausing", "pause")
    taken = store.write(lambda c: leases.take(c, run.pk, "process", epoch=lease.epoch))
    beat = store.heartbeat(taken)
    assert beat.desired == "pause" and [command.kind for command in beat.commands] == ["pause"]
    store.end(taken, "interrupted")
    assert store.run("r").state == "paused"

    store.set_state(store.run("r"), "cancelled")
    store.write(lambda c: c.execute(t.run.update().where(t.run.c.pk == run.pk).values(deleted_at=1)))
    assert jurat("runs", "ls", "--json").json["runs"][0]["deleted"] == 1
    assert "cancelled, deleted" in jurat("runs", "ls").out and "cancelled, deleted" in jurat("runs", "show", "r").out
    store.close()
