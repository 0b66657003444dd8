"""Names that users choose: shown as they are on terminals, in pictures, pages and graph files, or refused."""

import re
from pathlib import Path

import pytest

from because_rl.cli.console import emit, make_table
from because_rl.discovery.export import to_dot, to_graphml, to_node_link
from because_rl.errors import BecauseError
from because_rl.experiments.grid.grid import jobs, read_grid
from because_rl.factors import pack
from because_rl.graph import Graph
from because_rl.report.graph_figure import draw_graph, render
from because_rl.report.markup import tag
from tests.support import because

ODD = (r"$\bad{$", "[red]x[/blue]", '"; evil -> y [x="', "<script>", "a\\", "x$y$", "&amp;", "%s{}", "ключ")


def test_odd_names_are_shown_as_they_are(capsys):
    graph = Graph.from_parents(ODD, {name: (name,) for name in ODD})
    svg = render(draw_graph(graph, r"$\bad{$"), Path("graph.svg")).decode()
    assert r"$\bad{$" in svg
    assert "<script>" not in svg
    outside_quotes = re.sub(r'"(\\.|[^"\\])*"', "", to_dot(graph))
    assert "evil" not in outside_quotes
    assert outside_quotes.count("->") == len(ODD)
    assert "<script>" not in to_graphml(graph)
    assert "<script>" not in tag("p", *ODD)
    to_node_link(graph).encode()
    emit(None, False, make_table(r"[/b]$\bad{$", [{"[red]": name} for name in ODD]))
    assert "[red]x[/blue]" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["x\n", "\x1b[31m", "\ud800", "a\u202eb", "x" * 300, "\uffff"])
def test_names_that_cannot_be_printed_are_refused(name):
    with pytest.raises(BecauseError, match="printable characters") as refused:
        pack((name, 1, "continuous"))
    str(refused.value).encode("ascii")
    with pytest.raises(BecauseError, match="printable characters"):
        jobs(read_grid("paper", {"methods": {name: {"method": "ccil"}}}))


def test_arguments_that_are_not_utf8_are_refused(tmp_path):
    refused = because("check", "a\udcff", root=tmp_path, code=2)
    assert refused.stderr.startswith(r"because: Got the argument 'a\udcff'.")
