"""Prometheus's text format: families of samples, escaped as it wants them. What is measured is in metrics.py."""

from collections.abc import Mapping
from typing import Final, final

from headrace.core.statistics import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_IN_LABEL: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_IN_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Labels = Mapping[str, str]


@final
class Family:
    """All samples of one name."""

    __slots__ = ("_lines", "_name")

    def __init__(self, name: str, lines: list[str]) -> None:
        self._name = name
        self._lines = lines

    def add(self, value: float, labels: Labels | None = None) -> None:
        self._lines.append(f"{self._name}{_braced(labels)} {_number(value)}\n")

    def add_histogram(self, histogram: Histogram, labels: Labels) -> None:
        """Durations, as so many that were at most so long."""
        below = 0
        for bound_us, count in zip(histogram.bounds_us, histogram.counts, strict=False):
            below += count
            bounded = {**labels, "le": _number(bound_us / 1_000_000)}
            self._lines.append(f"{self._name}_bucket{_braced(bounded)} {below}\n")
        self._lines.append(f"{self._name}_bucket{_braced({**labels, 'le': '+Inf'})} {histogram.count}\n")
        self._lines.append(f"{self._name}_sum{_braced(labels)} {_number(histogram.sum_us / 1_000_000)}\n")
        self._lines.append(f"{self._name}_count{_braced(labels)} {histogram.count}\n")


@final
class Exposition:
    """A page of metrics in the making."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def counter(self, name: str, about: str) -> Family:
        return self._family(name, "counter", about)

    def gauge(self, name: str, about: str) -> Family:
        return self._family(name, "gauge", about)

    def histogram(self, name: str, about: str) -> Family:
        return self._family(name, "histogram", about)

    def encode(self) -> bytes:
        return "".join(["".join(lines) for lines in self._families.values()]).encode(errors="replace")

    def _family(self, name: str, kind: str, about: str) -> Family:
        """The samples of a name stay together, whenever they are added."""
        lines = self._families.get(name)
        if lines is None:
            lines = [f"# HELP {name} {about.translate(_IN_HELP)}\n", f"# TYPE {name} {kind}\n"]
            self._families[name] = lines
        return Family(name, lines)


def _braced(labels: Labels | None) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{value.translate(_IN_LABEL)}"' for name, value in labels.items()]) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
