"""For all tests: no property test has a deadline, for how long an example takes is up to the machine."""

from hypothesis import settings

settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
