"""Prometheus's text format, whatever the names are."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.admin.metrics import Exposition
from headrace.core.flow import Histogram

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(_TEXTS, st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_and_number_comes_through(label: str, value: float) -> None:
    page = Exposition()
    page.gauge("depth", 'Back\\slash, "quotes"\nand lines.').add(value, {"queue": label})

    (family,) = text_string_to_metric_families(page.encode().decode())

    assert family.documentation == 'Back\\slash, "quotes"\nand lines.'
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"queue": label}, value)]


def test_samples_of_a_family_stay_together_whenever_they_are_added() -> None:
    page = Exposition()
    for number in range(2):
        page.counter("a_total", "A.").add(number, {"n": str(number)})
        page.counter("b_total", "B.").add(number)

    text = page.encode().decode()

    assert text.count("# TYPE") == 2
    assert [family.name for family in text_string_to_metric_families(text)] == ["a", "b"]


def test_a_histogram_adds_up() -> None:
    histogram = Histogram((1000, 10_000))
    for duration_us in (500, 5000, 50_000):
        histogram.add(duration_us)
    page = Exposition()

    page.histogram("seconds", "S.").add_histogram(histogram, {"vhost": "/"})

    (family,) = text_string_to_metric_families(page.encode().decode())
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "seconds_bucket"}
    assert buckets == {"0.001": 1, "0.01": 2, "+Inf": 3}
    assert {sample.name: sample.value for sample in family.samples if "_bucket" not in sample.name} == {
        "seconds_sum": 0.0555,
        "seconds_count": 3,
    }
