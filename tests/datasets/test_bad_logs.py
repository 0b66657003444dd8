"""What is wrong with a table is said by name and place, with what is needed and how to fix it; and what was filled or
left out is said too."""

import builtins
import io
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import because_rl as br
from because_rl.datasets.columns import Columns
from because_rl.datasets.propose_factors import propose_factors
from because_rl.datasets.user_log import read_log
from because_rl.errors import BecauseError
from because_rl.factors import FactorSpec, pack
from tests.support import arrays, because, write

ROLES = {"state": ["x", "gear"], "action": ["push"], "episode": "batch"}
ROWS = [
    {"batch": f"b{k}", "t": str(t), "x": repr((-1) ** k * 0.1 * t + k), "gear": "ab"[(k + t) % 2], "push": str(t % 3)}
    for k in range(20)
    for t in range(5)
]
HEAD = "batch,t,x,gear,push"


def lines():
    return [HEAD, *(",".join(row.values()) for row in ROWS)]


def replaced(line, old, new):
    def change():
        out = lines()
        assert old in out[line - 1]
        out[line - 1] = out[line - 1].replace(old, new, 1)
        return out

    return change


def cut(start):
    return lambda: lines()[:start]


def without_header():
    return ["0,1,2,3,4", *("1,2,3,4,5" for _ in ROWS)]


def joined(change):
    return lambda: "\n".join(change()).encode()


def npz(**given):
    buffer = io.BytesIO()
    np.savez(buffer, **given)
    return buffer.getvalue()


def bomb():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("observations.npy", bytes(10**7))
    return buffer.getvalue().replace((10**7).to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little"))


N, IDS = 100, np.arange(100) // 5
BAD = {
    # what is wrong: (file name, its bytes, roles, the place and reason, the need or the fix)
    "no header": ("a.csv", joined(without_header), ROLES, "first line is 0, 1, 2", "names of the columns"),
    "empty": ("a.csv", lambda: b"", ROLES, "is empty", "a line of column names"),
    "header alone": ("a.csv", joined(cut(1)), ROLES, "no rows", "one row per step"),
    "short line": ("a.csv", joined(replaced(7, ",b,", ",")), ROLES, "line 7: 4 fields", "header names 5"),
    "long line": ("a.csv", joined(replaced(9, ",b", ",b,,")), ROLES, "line 9: 7 fields", "must be quoted"),
    "two names": ("a.csv", joined(replaced(1, "t,x", "x,x")), ROLES, "two columns 'x'", "rename one"),
    "word among numbers": ("a.csv", joined(replaced(4, "0.2", "err")), ROLES, "line 4: 'x' is 'err'", "--missing"),
    "decimal comma": (
        "a.csv",
        lambda: ("\n".join(lines()).replace(",", ";").replace(".", ",")).encode(),
        ROLES,
        "'x' is text with 100",
        "with a decimal point",
    ),
    "infinite": ("a.csv", joined(replaced(6, "0.4", "inf")), ROLES, "episode 0, step 4: state column 0", "finite"),
    "missing": ("a.csv", joined(replaced(4, "0.2", "")), ROLES, "1 of 'x' (first: episode b0, step 2)", "drop-episode"),
    "no episode": (
        "a.csv",
        joined(replaced(5, "b0", "")),
        ROLES,
        "missing in 1 rows, the first is line 5",
        "fill them",
    ),
    "no column": ("a.csv", joined(lines), ROLES | {"state": ["xx"]}, "no column 'xx'; it has batch, ", "mean 'x'?"),
    "no roles": ("a.csv", joined(lines), {}, "it has batch, gear, push, t, x", "--state 't,x,gear' --action 'push'"),
    "ids again": ("a.csv", lambda: "\n".join([*lines(), *lines()[1:]]).encode(), ROLES, "row 100", "pass --time"),
    "same time": ("a.csv", joined(replaced(5, "3", "2")), ROLES | {"time": "t"}, "the same time, 2", "remove one"),
    "few episodes": ("a.csv", joined(cut(50)), ROLES, "has 10 episodes", "at least 20"),
    "not utf-8": ("a.csv", lambda: "\n".join(lines()).encode("utf-16"), ROLES, "not text in UTF-8", "as it was"),
    "id as state": ("a.csv", joined(lines), ROLES | {"state": ["batch", "x"], "episode": "t"}, "go", "--time"),
    "level of old": (
        "a.csv",
        joined(lines),
        ROLES | {"state": ["gear=a", "gear=c"]},
        "line 3: 'gear' is 'b'",
        "gear=b",
    ),
    "pickle": ("a.npz", lambda: npz(observations=np.array([{}])), {}, "observations holds Python objects", "as it was"),
    "half": ("a.npz", lambda: npz(observations=np.zeros(N))[:300], {}, "cannot be read", "restore"),
    "bomb": ("a.npz", bomb, {}, "cannot be read", "as it was"),
    "rows": (
        "a.npz",
        lambda: npz(observations=np.zeros((N, 2)), actions=np.zeros(N - 1), episodes=IDS),
        {},
        "'actions' has 99 rows and 'observations' 100",
        "as many",
    ),
    "flags": (
        "a.npz",
        lambda: npz(observations=np.zeros((N, 2)), actions=np.zeros(N), dones=IDS),
        {},
        "'dones' has other values than 0 and 1",
        "flags",
    ),
    "parquet": ("a.parquet", lambda: b"PAR1 and no more", ROLES, "a.parquet", "as it was written"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_are_refused_with_place_need_and_fix(kind, tmp_path):
    name, content, roles, reason, need = BAD[kind]
    (tmp_path / name).write_bytes(content())
    spec = FactorSpec(pack(("x", 1, "continuous"), ("gear", 2, "categorical")), pack(("push", 3, "categorical")))
    with pytest.raises(BecauseError) as refused:
        br.load(tmp_path / name, factors=spec, **roles)
    assert reason in refused.value.got
    assert need in str(refused.value)
    assert refused.value.need
    assert "because collect" not in str(refused.value)


def test_the_good_table_is_read(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(lines()))
    log = read_log(tmp_path / "a.csv", columns=Columns(**ROLES))
    assert len(log.episodes) == 20
    assert log.notes == ()


def test_an_archive_may_not_declare_more_than_the_limit(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", observations=np.zeros((10**6, 1)))
    monkeypatch.setenv("BECAUSE_MAX_GB", "0.001")
    with pytest.raises(BecauseError, match="the limit that --max-gb sets"):
        read_log(tmp_path / "a.npz")


def test_parts_of_parquet_are_joined_and_must_have_the_same_columns(tmp_path):
    rows = {"observations": np.arange(200.0), "actions": np.ones(200), "episodes": np.arange(200) // 5}
    for name, part in (("b", slice(0, 100)), ("a", slice(100, 200))):
        parquet.write_table(pyarrow.table({k: v[part] for k, v in rows.items()}), tmp_path / f"{name}.parquet")
    read, as_given = (read_log(log).joined("observations")[:, 0] for log in (tmp_path, rows))
    np.testing.assert_array_equal(np.sort(read), np.sort(as_given))
    parquet.write_table(pyarrow.table({k: np.zeros(5) for k in ("observations", "actions")}), tmp_path / "c.parquet")
    with pytest.raises(BecauseError, match="'episodes' is in one of them"):
        read_log(tmp_path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    (tmp_path / "parts").mkdir()
    for path in (tmp_path / "log.parquet", tmp_path / "parts/one.parquet"):
        path.write_bytes(b"PAR1")
        with pytest.raises(BecauseError, match="pip install pyarrow"):
            read_log(tmp_path / "parts" if path.parent.name == "parts" else path)


def test_missing_values_are_handled_as_asked(tmp_path):
    """b0 lacks x in the middle, b1 at its beginning, b2 a gear; b3 lacks an action."""
    out = [line.split(",") for line in lines()]
    out[3][2], out[6][2], out[12][3], out[17][4] = "", "NA", "", ""
    path = tmp_path / "a.csv"
    more = [f"c{line}" for line in lines()[1:]]  # 20 episodes would be too few after some are left out
    path.write_text("\n".join([*(",".join(line) for line in out), *more]))

    def read(policy):
        return read_log(path, columns=Columns(**ROLES, missing=policy))

    dropped = read("drop-episode")
    assert len(dropped.episodes) == 36
    assert dropped.notes == ("values were missing: 2 of 'x', 1 of 'gear', 1 of 'push'; 4 of 40 episodes left out",)
    assert dropped.has_whole_number_actions
    filled = read("forward-fill")
    assert len(filled.episodes) == 39  # b1 has nothing before its first row
    assert filled.episodes[0]["observations"][:, 0].tolist() == [0, 0.1, 0.1, 0.30000000000000004, 0.4]
    gears = filled.episodes[1]["observations"][:, 1:]  # of b2
    assert gears.tolist() == [[1, 0], [1, 0], [1, 0], [0, 1], [1, 0]]
    assert "1 of 40 episodes that begin without a value left out" in filled.notes[0]
    marked = read("indicator")
    assert len(marked.episodes) == 40
    assert marked.names["observations"] == ("x", "gear=a", "gear=b", "x_missing", "gear_missing")
    assert marked.joined("observations")[:, 3].sum() == 2
    assert marked.episodes[0]["observations"][2].tolist() == [0.1, 1.0, 0.0, 1.0, 0.0]
    assert marked.names["actions"] == ("push", "push_missing")
    (tmp_path / "f.yaml").write_text(propose_factors(marked))
    again = br.load(path, factors=tmp_path / "f.yaml")
    assert [f.name for f in again.factors.state][-2:] == ["x_missing", "gear_missing"]
    assert again.metadata["notes"] == list(marked.notes)
    with pytest.raises(BecauseError, match="only with --missing indicator"):
        br.load(path, factors=tmp_path / "f.yaml", missing="drop-episode")


def test_a_short_episode_and_lost_ends_are_said():
    """D4RL's arrays. An end is kept where what followed it is logged, and counted where it is not."""
    rows = arrays(24, 6)
    last = np.arange(144) % 6 == 5
    ends = last & (np.arange(144) < 60)
    d4rl = {name: rows[name] for name in ("observations", "actions", "next_observations")}
    d4rl |= {"terminals": ends, "timeouts": last & ~ends}
    log = read_log(d4rl)
    assert sum(bool(e["terminations"][-1]) for e in log.episodes) == 10
    assert (sum(len(e["actions"]) for e in log.episodes), log.notes) == (144, ())
    del d4rl["next_observations"]
    log = read_log(d4rl)
    assert sum(len(e["actions"]) for e in log.episodes) == 120
    assert log.notes[0].startswith("10 of 24 episodes end (terminations) in a row whose next state is not logged")
    done = {name: d4rl[name] for name in ("observations", "actions", "timeouts")} | {"dones": last}
    assert read_log(done).notes == log.notes
    d4rl["terminals"][1] = True  # the first two rows, and then four
    d4rl["terminals"][2] = True  # an episode of one row
    log = read_log(d4rl)
    assert len(log.episodes) == 25
    assert "1 episode (1) of one row is left out" in log.notes[0]


def test_commands_say_what_they_did(tmp_path):
    rows = [line.split(",") for line in lines()]
    rows[3][2] = ""
    table = [",".join(row) for row in rows] + [",".join([f"c{r[0]}", *r[1:]]) for r in rows[1:]] + ["z,0,1.5,a,1"]
    (tmp_path / "a.csv").write_text("\n".join(table))
    roles = ("--state", "x,gear", "--action", "push", "--episode", "batch", "--missing", "drop-episode")
    said = because("factors", tmp_path / "a.csv", *roles, "-o", tmp_path / "f.yaml").stdout
    checked = because("check", tmp_path / "a.csv", "--factors", tmp_path / "f.yaml").stdout
    for text in (said, checked):
        assert "Note: values were missing: 2 of 'x'; 2 of 40 episodes left out." in text
        assert "1 episode (z) of one row is left out" in text
    refused = because("check", tmp_path / "a.csv", *roles[:-2], code=2).stderr
    assert "2 of 'x' (first: episode b0, step 2)" in refused
    assert "no factor spec" in because("check", tmp_path / "a.csv", *roles, code=2).stderr
    hdf5 = write(tmp_path / "log.hdf5", arrays())
    because("factors", hdf5, "-o", tmp_path / "g.yaml")
    assert "144" in because("check", hdf5, "--factors", tmp_path / "g.yaml").stdout
    assert "because collect" not in because("check", tmp_path / "gone.csv", code=2).stderr
