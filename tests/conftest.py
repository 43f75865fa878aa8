"""`pytest --hypothesis-profile=deep` looks a hundred times longer."""

from hypothesis import settings

settings.register_profile("deep", max_examples=10_000, deadline=None)
