"""What the shell completes, and what it costs."""

import subprocess
import sys

import typer

from because_rl.algorithms.registry import METHODS
from because_rl.cli import completion
from because_rl.cli.main import app
from tests.support import because


def test_methods_are_those_of_the_registry():
    assert set(completion.METHOD_NAMES) <= set(METHODS)
    assert len(completion.METHOD_NAMES) >= 15  # those that have settings for a world
    assert completion.complete_method("mn") == ["mnm"]
    assert completion.complete_methods("because,de") == ["because,delphic", "because,denoised-mdp"]
    assert completion.complete_methods("mnm,mn") == []


def test_tasks_worlds_and_recipes():
    assert completion.complete_task("crash-O-") == ["crash-O-random", "crash-O-medium", "crash-O-expert"]
    assert completion.complete_world("l") == ["lift"]
    assert completion.complete_recipe("a") == ["all"]


def test_datasets_under_the_root_have_short_names(tmp_path):
    for name in ("because/unlock-medium-v0", "my/log-v3"):
        (tmp_path / "datasets" / name / "data").mkdir(parents=True)
        (tmp_path / "datasets" / name / "data/metadata.json").write_text("{}")
    context = typer.Context(typer.main.get_command(app))
    context.params["root"] = tmp_path
    everything = ["unlock-medium", "because/unlock-medium-v0", "my/log-v3"]
    assert completion.complete_dataset(context, "") == everything
    assert completion.complete_dataset(context, "my") == ["my/log-v3"]


def test_shell_protocol(monkeypatch):
    monkeypatch.setenv("_BECAUSE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "because train td")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert because().stdout.split() == ["td3bc"]


def test_completing_imports_neither_jax_nor_a_simulator():
    code = "import sys, because_rl.cli.main; print({'jax', 'minigrid', 'highway_env', 'mujoco'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
