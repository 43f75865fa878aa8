"""The chaos suite: a few hundred ways to fail, each beside healthy requests that must not notice.

    from callboard.actors.testing import chaos

    report = chaos.run("die/*", tools=[my_tool])
    assert not report.fell_short, report.text()

`python -m callboard.actors.testing chaos --list` names the cases, docs/supervision.md has them as a table.
"""

from callboard.actors.testing.chaos.beside import NEIGHBOURS
from callboard.actors.testing.chaos.judging import Report, Result, Status
from callboard.actors.testing.chaos.suite import all_cases, chosen, run
from callboard.actors.testing.ways.case import Blast, Case, Group, Level

__all__ = ["NEIGHBOURS", "Blast", "Case", "Group", "Level", "Report", "Result", "Status", "all_cases", "chosen", "run"]
