"""Results as values. Measuring is in measuring.py, showing in table.py and plot.py."""

from dataclasses import dataclass, field
from typing import Final, Literal

Verdict = Literal["ok", "failed", "unsupported"]
NOT_SPOKEN: Final = "this is not measured in a protocol that it speaks"


@dataclass(slots=True)
class Result:
    """One row of one broker in one round. Figures are None where they were not measured or could not be."""

    scenario: str
    row: str
    title: str
    broker: str
    family: str
    round: int
    verdict: Verdict
    why: str = ""
    messages: int = 0
    seconds: float = 0.0
    rate: float | None = None
    server_us: float | None = None
    generator_us: float | None = None
    server_cores: float | None = None
    publisher_cores: float | None = None
    consumer_cores: float | None = None
    other_cores: float | None = None
    """Processor time that everything else on the machine used meanwhile."""
    is_generator_bound: bool = False
    latency_us: dict[str, float] = field(default_factory=dict)
    confirm_us: dict[str, float] = field(default_factory=dict)
    memory_before: int | None = None
    memory_peak: int | None = None
    memory_after: int | None = None
    verified: str = ""
    stripped: int = 0
    """Number of messages that came without the ids or headers they were sent with."""
    axis: str = ""
    point: int = 0

    def figure(self, name: str) -> float | None:
        """A figure by the name that tables and plots have for it; None for what failed."""
        if self.verdict != "ok":
            return None
        if name in ("p50", "p99"):
            return (self.latency_us or self.confirm_us).get(name)
        value = {"rate": self.rate, "cpu": self.server_us, "memory": self.memory_after}[name]
        return None if value is None else float(value)
