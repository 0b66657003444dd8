"""Tables show text as it is."""

from because_rl.cli.console import emit, make_table


def test_names_in_brackets_are_not_markup(capsys):
    emit(None, False, make_table("[log] a", [{"x[0]": "[x[0]]", "causes": "[push], [/b] and x[0]\\"}]))
    text = capsys.readouterr().out
    for word in ("[log] a", "x[0]", "[x[0]]", "[push], [/b] and x[0]\\"):
        assert word in text
