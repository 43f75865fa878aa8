"""The parts of the testing kit that do I/O: servers, adapters of other runtimes, the pytest plugin."""
