"""The verification of a data directory while no broker has it open, and the few repairs that lose nothing. No printing.

`examine` reads everything and changes nothing, `plan` tells what `repair` would do, `repair` does exactly that.
"""

from headrace.storage.local.doctor.examination import examine
from headrace.storage.local.doctor.findings import JournalRow, Problem, Progress, QueueRow, Report, plan, repair

__all__ = ["JournalRow", "Problem", "Progress", "QueueRow", "Report", "examine", "plan", "repair"]
