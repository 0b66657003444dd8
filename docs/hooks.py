"""Pages may link to any file of the repository as they would on a code host: ``../because_rl/graph.py#L12``.

What some page links to comes along: source as a page with numbered lines, pictures and data as they are, a folder as a
list of its files. So the site needs no code host, and the same link works there and here.

And examples in docstrings (``>>> 1 + 1``), which Markdown takes for quotations, are code.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path, PurePosixPath

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

OUTSIDE = re.compile(r"(?<=\]\()\.\./([^)#\s]+)")
"""The path in a Markdown link that leaves docs/."""
SHOWN = (".py", ".yaml", ".md", ".toml", ".lock")
"""Shown as pages; other files are copied."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(Examples())  # by instance, as Markdown allows
    return config


class Examples(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(FenceExamples(md), "examples", 30)  # before code blocks are looked for


class FenceExamples(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        text, inside = [], False
        for line in [*lines, ""]:
            if line.startswith(">>>") and not inside:
                text, inside = [*text, "```pycon"], True
            elif not line.strip() and inside:
                text, inside = [*text, "```"], False
            text.append(line)
        return text


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.docs_dir).parent
    texts = [page.content_string for page in files.documentation_pages()]
    for path in sorted({path for text in texts for path in OUTSIDE.findall(text)}):
        file = (root / path).resolve()
        if not file.is_relative_to(root) or not file.exists():
            continue  # MkDocs will complain about the link, naming its page
        if file.is_dir() or file.suffix in SHOWN:
            made = File.generated(config, place(path, file), content=show(file, path))
        else:
            made = File.generated(config, place(path, file), abs_src_path=str(file))
        made.inclusion = made.inclusion.NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    root = Path(config.docs_dir).parent
    return OUTSIDE.sub(lambda link: place(link[1], root / link[1]), markdown)


def place(path: str, file: Path) -> str:
    """Where the site has a file of the repository, among the pages of docs/."""
    inside = PurePosixPath("source") / path
    return f"{inside}.md" if file.is_dir() or file.suffix in SHOWN else str(inside)


def show(file: Path, path: str) -> str:
    """A page on it, without a table of contents and left out of the search."""
    head = f"---\ntitle: {file.name}\nhide: [toc]\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n"
    if file.is_dir():
        names = sorted(inside.name for inside in file.iterdir() if not inside.name.startswith("."))
        return head + f"{len(names)} files\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text()
    code = highlight(text, get_lexer_for_filename(file.name), HtmlFormatter(nowrap=True, stripnl=False))
    lines = (f'<a id="L{n}" href="#L{n}">{n}</a>{line or " "}' for n, line in enumerate(code.splitlines(), 1))
    body = "\n".join(lines) if code else escape(text)
    return head + f'<div class="source highlight"><pre>{body}</pre></div>\n'
