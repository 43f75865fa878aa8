"""A program that answers questions and lets Prometheus scrape what it did: `python examples/metrics_endpoint.py 9000`.

The registry is the host's own, with what else it counts; callboard only adds its metrics, at each scrape.
"""

from __future__ import annotations

import sys

import prometheus_client

from callboard import Runtime, Settings, tool


@tool(risk="read", isolation="thread")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def main(port: int) -> None:
    """Ask what is on stdin, a question a line, until it ends."""
    registry = prometheus_client.CollectorRegistry()
    questions = prometheus_client.Counter("shop_questions", "Questions that were asked.", registry=registry)
    with Runtime(Settings(), tools=[weather]) as runtime:
        registry.register(runtime.prometheus_collector())
        server, thread = prometheus_client.start_http_server(port, addr="127.0.0.1", registry=registry)
        print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
        try:
            for line in sys.stdin:
                questions.inc()
                print(runtime.ask_sync(line).text, flush=True)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9000)
