"""Filter expressions over a message's fields and headers: parsing and evaluation. No queues, codecs or Spark.

docs/design/selectors.md defines every corner case and explains why the parser is our own.
"""

from headrace.selector.evaluate import MappingRow, Row
from headrace.selector.fields import HeaderValue, header_text
from headrace.selector.selector import Selector, canonical_text, parse, parse_plain, selector_of
from headrace.selector.spark_sql import to_spark_sql

__all__ = [
    "HeaderValue",
    "MappingRow",
    "Row",
    "Selector",
    "canonical_text",
    "header_text",
    "parse",
    "parse_plain",
    "selector_of",
    "to_spark_sql",
]
