"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# Machines are noisy: how long an example takes says nothing about it.
settings.register_profile("ludus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ludus")
