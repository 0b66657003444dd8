"""Commands run in this process; those that train compile small programs."""

import pytest

from tests.support import quick_compilation


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    with quick_compilation():
        yield
