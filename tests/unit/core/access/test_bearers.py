"""Logins by tokens: accepted users, their accounts, and the end of tokens."""

import pytest

from headrace.core.access.logins import Account, Bearer, Tokens, is_token
from headrace.core.access.permissions import WRITE, Grants, Permission
from headrace.core.access.users import Limits
from headrace.errors import Refused
from tests.endpoints import must
from tests.unit.core.access.test_access import Gate

SECOND_US = 1_000_000


class Book(Tokens):
    """Tokens from a dictionary."""

    def __init__(self) -> None:
        self.bearers: dict[bytes, Bearer] = {}
        self.reads = 0

    def read(self, token: bytes) -> Bearer:
        self.reads += 1
        if token not in self.bearers:
            raise Refused("is not in the book")
        return self.bearers[token]


@pytest.fixture
def gate() -> Gate:
    gate = Gate()
    gate.add("ann", None, "monitoring")
    gate.access.put_permission(Permission("ann", "/", "", "^orders$", ""), must)
    return gate


@pytest.fixture
def book(gate: Gate) -> Book:
    book = Book()
    gate.access.use_tokens(book)
    book.bearers[token("ann")] = Bearer("ann", gate.clock.now_us() + 60 * SECOND_US, None)
    grants = Grants("bob", "hr", ["hr.write:%2F/jobs", "hr.tag:management"])
    book.bearers[token("bob")] = Bearer("bob", gate.clock.now_us() + 60 * SECOND_US, grants)
    return book


def token(name: str) -> bytes:
    return b"eyJ" + name.encode() + b".claims.signature"


def come_in(gate: Gate, name: str, user: str = "whoever", address: str = "10.0.0.1") -> Account:
    (account,) = gate.login(user, token(name), address)
    assert account is not None
    return account


def test_the_token_says_who_comes_and_storage_what_it_may(gate: Gate, book: Book) -> None:
    account = come_in(gate, "ann")

    assert (account.name, account.user.tags) == ("ann", ("monitoring",))
    rights = gate.access.rights(account, "/")
    assert rights is not None
    assert rights.may(WRITE, "orders")


def test_a_token_with_grants_needs_no_stored_user(gate: Gate, book: Book) -> None:
    account = come_in(gate, "bob")

    rights = gate.access.rights(account, "/")
    assert rights is not None
    assert rights.may(WRITE, "jobs")
    assert not rights.may(WRITE, "orders")
    assert gate.access.rights(account, "eu") is None
    assert account.user.tags == ("management",)
    assert gate.access.rights(account, "/") is rights


def test_a_stored_user_gives_a_token_with_grants_its_limits_and_nothing_else(gate: Gate, book: Book) -> None:
    gate.add("bob", "secret", "administrator")
    gate.access.put_permission(Permission("bob", "/", ".*", ".*", ".*"), must)
    gate.access.set_limits("bob", Limits(max_connections=1), must)
    account = come_in(gate, "bob")
    rights = gate.access.rights(account, "/")

    assert rights is not None
    assert not rights.may(WRITE, "orders")
    assert account.user.tags == ("management",)
    assert account.connect()
    assert not gate.access.account("bob").connect()
    gate.access.set_limits("bob", Limits(max_connections=2), must)
    assert account.connect()


def test_a_token_of_nobody_and_one_that_is_wrong_are_refused_slowly_and_logged(
    gate: Gate, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    book.bearers[token("eve")] = Bearer("eve", gate.clock.now_us() + 60 * SECOND_US, None)
    refused = [*gate.login("ann", token("eve"), "10.0.0.2"), *gate.login("ann", token("mallory"), "10.0.0.3")]
    assert refused == []
    delays = [delay_us for delay_us, _ in gate.background.waiting]
    assert delays == [200_000, 200_000]

    gate.background.pass_time()

    assert "login of user 'eve' from 10.0.0.2 refused: there is no such user" in caplog.text
    assert "login of somebody from 10.0.0.3 refused: the token is not in the book" in caplog.text
    assert "mallory" not in caplog.text


def test_failed_tokens_slow_their_address_down_and_nobody_else(gate: Gate, book: Book) -> None:
    for _ in range(3):
        gate.login("", token("mallory"), "10.0.0.3")
        gate.background.pass_time()
        gate.background.pass_time()

    come_in(gate, "ann", "", "10.0.0.1")


def test_a_token_that_was_right_is_read_once_until_its_time_is_over(gate: Gate, book: Book) -> None:
    assert come_in(gate, "ann") is come_in(gate, "ann")
    assert book.reads == 1

    del book.bearers[token("ann")]
    gate.clock.advance(60)
    answers = gate.login("", token("ann"))
    gate.background.pass_time()
    assert answers == [None]


def test_other_keys_have_every_token_read_again_and_no_keys_take_none(gate: Gate, book: Book) -> None:
    come_in(gate, "ann")
    gate.access.use_tokens(book)
    come_in(gate, "ann")
    assert book.reads == 2

    gate.access.use_tokens(None)
    answers = gate.login("ann", token("ann"))
    gate.background.pass_time()
    assert answers == [None]


def test_connections_end_with_their_token(gate: Gate, book: Book) -> None:
    account = come_in(gate, "ann")
    told: list[str] = []
    account.connect()
    account.on_removed[gate] = told.append
    gate.clock.advance(59)
    gate.access.tick()
    assert told == []

    gate.clock.advance(1)
    gate.access.tick()

    assert told == ["the token of user 'ann' has expired"]
    account.disconnect()
    gate.clock.advance(1)
    gate.access.tick()
    assert len(told) == 1


def test_a_removed_user_ends_who_came_with_its_token(gate: Gate, book: Book) -> None:
    account = come_in(gate, "ann")
    told: list[str] = []
    account.connect()
    account.on_removed[gate] = told.append

    gate.access.delete_user("ann", must)

    assert told == ["user 'ann' is deleted"]
    answers = gate.login("", token("ann"))
    gate.background.pass_time()
    assert answers == [None]


def test_guest_comes_from_this_machine_only_with_a_token_too(gate: Gate, book: Book) -> None:
    book.bearers[token("guest")] = Bearer("guest", gate.clock.now_us() + 60 * SECOND_US, None)
    answers = gate.login("", token("guest"), "10.0.0.1")
    gate.background.pass_time()

    assert answers == [None]
    assert come_in(gate, "guest", address="127.0.0.1").name == "guest"


def test_a_password_looks_like_a_token_only_when_it_has_its_shape() -> None:
    assert is_token(b"eyJhbGciOiJFUzI1NiJ9.e30.AAAA")
    for password in (b"", b"secret", b"eyJ", b"eyJ.a", b"eyJ.a.b.c", b"a.b.c"):
        assert not is_token(password)
