"""For all tests: how Hypothesis runs. No fixtures."""

from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; pytest's own timeout ends what hangs.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")
