"""One S3 server for all tests here, and a bucket for each."""

from collections.abc import Iterator

import pytest

from tests.stores import S3, moto


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    with moto() as port:
        yield port


@pytest.fixture
def s3(s3_port: int) -> Iterator[S3]:
    bucket = S3(s3_port)
    with bucket.here():
        yield bucket
    bucket.close()
