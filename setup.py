"""The long description for a package index: README.md, in which links to files of the repository become plain text."""

import re
from pathlib import Path

from setuptools import setup


def readme_for_an_index(text: str) -> str:
    """`text` without pictures and links whose target is relative, which would lead nowhere outside the repository.

    >>> readme_for_an_index("see [results](docs/results.md) and [BECAUSE](https://be.example) ![Lift](lift.png)")
    'see results and [BECAUSE](https://be.example) '
    """
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=readme_for_an_index(readme), long_description_content_type="text/markdown")
