"""What the tests of methods share."""

import jax
import pytest


@pytest.fixture(scope="module")
def unoptimised():
    """Compile nearly without optimisation: for short trainings, where compiling takes longer than running."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
