"""Pages may link to any file of the repository as they would on a code host: ``../because_rl/graph.py#L12``.

Every file that a page links to becomes part of the site: source as a page with numbered lines, pictures and data as
they are, a folder as a list of its files. So the site needs no code host, and the same link works there and here.

Examples in docstrings (``>>> 1 + 1``), which Markdown takes for quotations, are shown as code.
"""

from __future__ import annotations

import posixpath
import re
from html import escape
from pathlib import Path

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

UPWARD = re.compile(r"(?<=\]\()(?:\.\./)+[^)#\s]+")
"""The path in a Markdown link that leaves the folder of its page."""
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
    pages = [(page.src_uri, page.content_string) for page in files.documentation_pages()]
    targets = {repository_path(link, page) for page, text in pages for link in UPWARD.findall(text)}
    for path in sorted(targets - {None}):
        file = root / path
        if not file.exists():
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

    def link(match: re.Match[str]) -> str:
        path = repository_path(match[0], page.file.src_uri)
        if path is None:
            return match[0]
        return posixpath.relpath(place(path, root / path), posixpath.dirname(page.file.src_uri) or ".")

    return UPWARD.sub(link, markdown)


def repository_path(link: str, page: str) -> str | None:
    """The path in the repository of what a page of docs/ links to; None: inside docs/, or outside the repository."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith(("docs/", "../")) else path


def place(path: str, file: Path) -> str:
    """Where the site has a file of the repository, among the pages of docs/."""
    inside = posixpath.join("source", path)
    return f"{inside}.md" if file.is_dir() or file.suffix in SHOWN else inside


def show(file: Path, path: str) -> str:
    """A page that shows the file, without a table of contents and left out of the search."""
    head = f"---\ntitle: {file.name}\nhide: [toc]\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n"
    if file.is_dir():
        names = sorted(inside.name for inside in file.iterdir() if not inside.name.startswith("."))
        return head + f"{len(names)} files\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text()
    code = highlight(text, get_lexer_for_filename(file.name), HtmlFormatter(nowrap=True, stripnl=False))
    lines = (f'<a id="L{n}" href="#L{n}">{n}</a>{line or " "}' for n, line in enumerate(code.splitlines(), 1))
    body = "\n".join(lines) if code else escape(text)
    return head + f'<div class="source highlight"><pre>{body}</pre></div>\n'
