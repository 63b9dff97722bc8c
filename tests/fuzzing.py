"""How long property-based tests run: shortly in the suite, long with `make fuzz`, which sets DOUBLECV_FUZZ."""

import os

from hypothesis import HealthCheck, settings


def fuzz(examples):
    """Settings of a test that tries so many examples in the suite."""
    return settings(
        max_examples=int(os.environ.get("DOUBLECV_FUZZ", examples)),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
