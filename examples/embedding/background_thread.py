"""A thread of your own that asks: a desktop program, a bot, a scheduler.

    python examples/embedding/background_thread.py

Questions may be asked from any number of threads; the runtime has its own. Stopping it ends what still waits: each
`ask_sync` that is open raises RequestEnded, so threads need no flag to be looked at.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from weather import SETTINGS, weather

from callboard import CallboardError, Runtime


def answer(runtime: Runtime, questions: SimpleQueue[str | None], answers: SimpleQueue[str]) -> None:
    """The thread: until it is given None."""
    while (question := questions.get()) is not None:
        try:
            answers.put(runtime.ask_sync(question).text)
        except CallboardError as error:
            answers.put(f"No answer: {error}")


def main() -> None:
    """Ask from a thread while the main thread does something else."""
    questions, answers = SimpleQueue[str | None](), SimpleQueue[str]()
    with Runtime(SETTINGS, tools=[weather]) as runtime:
        thread = threading.Thread(target=answer, args=(runtime, questions, answers))
        thread.start()
        questions.put("What is the weather in Oslo?")
        print(answers.get())
        questions.put(None)
        thread.join()


if __name__ == "__main__":
    main()
