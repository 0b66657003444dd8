"""`import because_rl`: the README's Python, what it exports, and that importing it loads little."""

import re
import subprocess
import sys

import numpy as np
import pytest

import because_rl as br
from because_rl.datasets.collect import collect
from because_rl.datasets.recipe import Recipe
from because_rl.training.saved import AGENT, FORMAT, WEIGHTS
from tests.support import REPOSITORY, because, small

TINY = {"hidden": 8, "batch": 32, "world_steps": 40, "energy_steps": 20, "energy_hidden": 8, "check_steps": 0}


def readme_python():
    (block,) = re.findall(r"```python\n(import because_rl.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    return block


@pytest.mark.slow
def test_the_python_of_the_readme_runs(root, monkeypatch):
    """With a small dataset, a small model, one seed and few scenes; the long version takes the block as it stands."""
    collect(Recipe.parse("unlock-medium", 30), root, workers=1)
    (folder,) = (root / "datasets").glob("**/unlock-medium-n30*")
    folder.rename(folder.with_name(folder.name.replace("-n30", "")))
    monkeypatch.setattr(br, "BecauseConfig", lambda: br.make_method("because", TINY).config)
    monkeypatch.chdir(root)
    names = {}
    exec(readme_python().replace("episodes=100", "episodes=3").replace("seeds=3", "seeds=1"), names)
    assert names["graph"].parents("door")
    assert names["action"] in range(len(names["data"].factors.codes))
    assert names["next_state"].shape == names["state"].shape
    assert sorted(file.name for file in (root / "policy").iterdir()) == [AGENT, WEIGHTS]


@pytest.mark.long
def test_the_python_of_the_readme_runs_as_it_stands(root, monkeypatch):
    because("collect", "unlock-medium", root=root)
    monkeypatch.chdir(root)
    names = {}
    exec(readme_python() + "\nresult = br.evaluate(agent, 'unlock-O-medium', episodes=100)", names)
    assert names["result"].success > 0.9
    assert (root / "policy" / WEIGHTS).stat().st_size < 5e6


@pytest.mark.long
def test_mypy_strict_accepts_the_python_of_the_readme(tmp_path):
    (tmp_path / "user.py").write_text(readme_python() + "\nreveal_type(agent)\nreveal_type(uncertainty)\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(tmp_path / "user.py")], capture_output=True, text=True, cwd=REPOSITORY)
    lines = [line for line in done.stdout.splitlines() if "user.py" in line]
    assert [line.partition('"')[2].partition("[")[0].rstrip('"') for line in lines] == [
        "because_rl.training.method.Agent",
        "numpy.ndarray",
    ], done.stdout


def test_every_exported_name_exists_and_no_other():
    for name in br.__all__:
        assert getattr(br, name).__module__.startswith("because_rl.")
    assert set(br.__all__) <= set(dir(br))
    with pytest.raises(AttributeError, match="no attribute 'Becase'"):
        br.Becase  # noqa: B018


def test_importing_loads_neither_jax_nor_a_simulator():
    heavy = "jax", "minigrid", "highway_env", "mujoco", "matplotlib"
    script = f"import because_rl, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_mask_that_does_not_fit_is_refused():
    data = small("unlock")
    other = br.Graph.from_parents(("a", "b"), {"a": ("a",)})
    with pytest.raises(br.BecauseError, match="about a, b"):
        br.Because().fit(data, mask=other)
    with pytest.raises(br.BecauseError, match=r"shape \(2, 2\)"):
        br.Because().fit(data, mask=np.ones((2, 2)))


def test_arguments_of_act_and_predict_are_checked():
    data = small("unlock")
    agent = br.make_method("td3bc", {"steps": 2, "hidden": 4, "batch": 8}).fit(data, seeds=[7])
    assert agent.act(data.state[0], data.goal[0]).shape == ()
    for arguments, message in (
        ((data.state[0][:3], data.goal[0]), r"a state of shape \(3,\)"),
        ((data.state[:3], data.goal[:2]), "2 goals for 3 states"),
        ((data.state[0] * np.nan, data.goal[0]), "not finite"),
        ((data.state[0], data.goal[0], 99), "steps_left=99"),
    ):
        with pytest.raises(br.BecauseError, match=message):
            agent.act(*arguments)
    with pytest.raises(br.BecauseError, match="no seed 3"):
        agent.act(data.state[0], data.goal[0], seed=3)


@pytest.fixture
def saved(tmp_path):
    agent = br.make_method("td3bc", {"steps": 2, "hidden": 4, "batch": 8}).fit(small("unlock"))
    agent.save(tmp_path / "agent")
    return tmp_path / "agent"


def test_damaged_and_foreign_agents_are_refused(saved, tmp_path):
    weights, record = (saved / WEIGHTS).read_bytes(), (saved / AGENT).read_text()
    for file, content, message in (
        (WEIGHTS, weights[:-1] + bytes([weights[-1] ^ 1]), "not what was written"),
        (AGENT, record.replace('"horizon": 10', '"horizon": 11'), "not what was written"),
        (AGENT, record.replace(f'"format": {FORMAT}', '"format": 9'), "has format 9"),
        (AGENT, record[:-9], "not valid JSON"),
    ):
        before = (saved / file).read_bytes()
        (saved / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(br.BecauseError, match=message):
            br.load_agent(saved)
        (saved / file).write_bytes(before)
    br.load_agent(saved)
    with pytest.raises(br.BecauseError, match="no saved agent"):
        br.load_agent(tmp_path / "nothing")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(br.BecauseError, match="holds other files"):
        br.load_agent(saved).save(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"
