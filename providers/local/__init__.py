"""Providers without a network: the offline default, and the scripted fake for tests."""
