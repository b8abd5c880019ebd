"""Users and permissions: stored, applied to open connections; wrong logins are slow, right ones quick."""

import base64
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.clock import ManualClock
from headrace.core.access.access import Access
from headrace.core.access.logins import Account, Background, Login, Result
from headrace.core.access.permissions import WRITE, Permission, TopicPermission
from headrace.core.access.users import ADMINISTRATOR, GUEST_HASH, Limits, User, hash_password, is_right
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.pubsub.session import AT_LEAST_ONCE
from headrace.errors import AccessRefused, HeadraceError, NotFound, Refused, TooLarge, Unavailable
from headrace.storage.api import PERMISSIONS, USERS, Commit, Engine
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine
from tests.endpoints import AtOnce, access_to, must
from tests.house import House
from tests.listeners import Listener
from tests.refusing_engine import RefusingEngine

ALL = (".*", ".*", ".*")


class Gate:
    """Access over an engine, with the results of logins."""

    def __init__(self, engine: Engine | None = None, background: Background | None = None) -> None:
        self.engine = engine or MemoryEngine()
        self.clock = ManualClock()
        self.background = AtOnce()
        self.hosts = Hosts(self.engine, self._broker)
        self.access = Access(self.engine, self.clock, background or self.background, self.hosts)

    def _broker(self, name: str, is_new: bool) -> Broker:
        return Broker(self.engine, self.clock, lambda call: None, name, is_new=is_new)

    def add(self, name: str, password: str | None = "secret", *tags: str) -> None:
        self.access.put_user(name, password, tags, must)
        self.engine.sync()

    def login(self, user: str, password: bytes | None, address: str = "10.0.0.1") -> list[Account | None]:
        """The answers so far, without delayed ones."""
        answers: list[Account | None] = []
        self.access.login(Login(user, password, address, address.startswith("127.")), answers.append)
        return answers


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_guest_comes_in_from_this_machine_only(gate: Gate) -> None:
    (guest,) = gate.login("guest", b"guest", "127.0.0.1")
    assert guest is not None
    assert ADMINISTRATOR in guest.user.tags
    assert gate.access.rights(gate.access.account("guest"), "/") is not None

    refused = gate.login("guest", b"guest", "10.0.0.1")
    gate.background.pass_time()
    assert refused == [None]


def test_guests_hash_is_that_of_guest() -> None:
    assert is_right(b"guest", GUEST_HASH)
    assert not is_right(b"Guest", GUEST_HASH)


# Made by RabbitMQ 3.10 for the password "secret".
_THEIR_HASH = "xO/eOrewkZxTFiGfIfY4ScWZkppFenyUUnZYyiKg/YlZ1DrM"


def test_a_user_that_rabbitmq_knew_keeps_the_password(gate: Gate) -> None:
    longer = b"salt" + hashlib.sha512(b"saltsecret").digest()
    for name, password_hash in (("ann", _THEIR_HASH), ("bob", base64.b64encode(longer).decode())):
        gate.access.put_user_hash(name, password_hash, ("x",), must)
        gate.engine.sync()

        assert [account.user.tags for account in gate.login(name, b"secret") if account] == [("x",)]

    wrong = gate.login("ann", b"Secret") + gate.login("bob", b"Secret")
    gate.background.pass_time()
    assert not any(wrong)


def test_a_quick_hash_is_not_kept_and_what_is_kept_can_be_brought_elsewhere(gate: Gate) -> None:
    gate.access.put_user_hash("ann", _THEIR_HASH, (), must)
    kept = gate.access.account("ann").user.password_hash
    other = Gate()

    other.access.put_user_hash("ann", kept, (), must)

    assert base64.b64decode(_THEIR_HASH)[4:].hex() not in kept
    assert kept.startswith("$rabbitmq-sha256$c4efde3a$argon2id$")
    assert [account is not None for account in other.login("ann", b"secret")] == [True]


@pytest.mark.parametrize(
    "password_hash",
    ["", "?", "c2hvcnQ=", "$rabbitmq-", "$rabbitmq-sha256$zz$argon2id$", "$rabbitmq-none$00$argon2id$", "$argon2id$"],
)
def test_by_a_hash_of_no_known_kind_nobody_comes_in(gate: Gate, password_hash: str) -> None:
    gate.access.put_user_hash("ann", password_hash, (), must)

    answers = gate.login("ann", b"")
    gate.background.pass_time()

    assert answers == [None]


def test_hashes_differ_for_the_same_password_and_none_is_damaged_quietly() -> None:
    first, second = hash_password(b"x"), hash_password(b"x")
    assert first != second
    assert first.startswith("$argon2id$")
    assert is_right(b"x", first)
    assert not is_right(b"x", first[:-4] + "AAAA")
    assert not is_right(b"x", "not a hash")


def test_everything_is_there_again_after_a_restart_and_guest_does_not_come_back(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    gate = Gate(engine)
    gate.add("ann", "secret", "monitoring")
    gate.access.set_limits("ann", Limits.from_json({"max-connections": 3}), must)
    gate.access.put_permission(Permission("ann", "/", "^a", "^b", "^c"), must)
    gate.access.put_topic_permission(TopicPermission("ann", "/", "amq.topic", "^x", "^y"), must)
    gate.access.delete_user("guest", must)
    engine.close()

    engine = LocalEngine(tmp_path)
    gate = Gate(engine)

    assert [user.name for user in gate.access.users()] == ["ann"]
    (ann,) = gate.login("ann", b"secret")
    assert ann is not None
    assert ann.user.tags == ("monitoring",)
    assert ann.user.limits == Limits(max_connections=3)
    assert gate.access.permissions() == [Permission("ann", "/", "^a", "^b", "^c")]
    assert gate.access.topic_permissions() == [TopicPermission("ann", "/", "amq.topic", "^x", "^y")]
    engine.close()


def test_a_right_login_is_checked_once_and_then_known(gate: Gate) -> None:
    gate.add("ann")
    runs = gate.background.runs
    for _ in range(5):
        (ann,) = gate.login("ann", b"secret")
        assert ann is not None
    assert gate.background.runs == runs + 1


def test_another_password_makes_the_old_one_wrong_at_once(gate: Gate) -> None:
    gate.add("ann")
    assert gate.login("ann", b"secret") != [None]

    gate.access.put_user("ann", "new", (), must)

    assert gate.login("ann", b"secret") == []
    gate.clock.advance(10)
    assert gate.login("ann", b"new") == [gate.access.account("ann")]


@pytest.mark.parametrize("user", ["ann", "nobody", "ghost\0", ""])
def test_a_wrong_password_and_an_unknown_user_take_the_same_way(gate: Gate, user: str) -> None:
    gate.add("ann")
    runs = gate.background.runs

    answers = gate.login(user, b"wrong")

    assert gate.background.runs == runs + 1, "an unknown user's password is checked too"
    assert answers == []
    gate.background.pass_time()
    assert answers == [None]


def test_failures_take_longer_each_time_and_are_forgiven_by_a_right_login(gate: Gate) -> None:
    gate.add("ann")
    delays = []
    for _ in range(8):
        gate.login("ann", b"wrong")
        while gate.background.waiting:
            delays += [delay_us for delay_us, _ in gate.background.waiting]
            gate.background.pass_time()
        gate.clock.advance(10)
    assert delays == sorted(delays)
    assert delays[0] < delays[1] < delays[2]
    assert max(delays) <= 4_000_000

    assert gate.login("ann", b"secret") == [gate.access.account("ann")]
    gate.login("ann", b"wrong")
    assert gate.background.waiting[0][0] == delays[0]


def test_guessing_many_names_from_one_address_is_slowed_and_nobody_elsewhere(gate: Gate) -> None:
    for number in range(5):
        gate.login(f"user{number}", b"guess", "10.0.0.66")
        gate.background.pass_time()
        gate.clock.advance(10)
    gate.login("user9", b"guess", "10.0.0.66")
    slow = max(delay_us for delay_us, _ in gate.background.waiting)
    gate.background.waiting.clear()

    gate.login("user9000", b"guess", "10.0.0.1")

    assert gate.background.waiting[0][0] < slow


def test_a_login_right_after_a_failure_waits_before_it_is_looked_at(gate: Gate) -> None:
    gate.add("ann")
    gate.login("ann", b"wrong")
    runs = gate.background.runs

    answers = gate.login("ann", b"secret")

    assert gate.background.runs == runs
    gate.background.pass_time()
    assert answers == [gate.access.account("ann")]


def test_failed_logins_are_logged_without_the_password(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    gate.add("ann")
    with caplog.at_level(logging.INFO):
        gate.login("ann", b"hunter2", "10.0.0.9")
        gate.login("nobody", b"hunter3", "10.0.0.9")
        gate.background.pass_time()
        gate.background.pass_time()
    assert "login of user 'ann' from 10.0.0.9 refused" in caplog.text
    assert "login of user 'nobody' from 10.0.0.9 refused" in caplog.text
    assert "hunter" not in caplog.text
    assert "argon2" not in caplog.text


class Slowly(Background):
    """Background work that runs on demand."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        self.work.append(lambda: done(work()))

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        self.work.append(call)

    def go(self) -> None:
        while self.work:
            self.work.pop(0)()


def test_many_who_come_at_once_with_the_same_password_cost_one_check() -> None:
    slowly = Slowly()
    gate = Gate(background=slowly)
    answers = [gate.login("guest", b"guest", "127.0.0.1") for _ in range(1000)]
    assert len(slowly.work) == 1

    slowly.go()

    assert all(answer == [gate.access.account("guest")] for answer in answers)


def test_logins_that_wait_to_be_checked_are_bounded() -> None:
    slowly = Slowly()
    gate = Gate(background=slowly)
    answers = [gate.login("guest", b"%d" % number, "127.0.0.1") for number in range(3000)]
    refused = [answer for answer in answers if answer == [None]]
    assert len(slowly.work) == 3000 - len(refused) == 1024


def test_whoever_guesses_does_not_take_the_place_of_others() -> None:
    slowly = Slowly()
    gate = Gate(background=slowly)
    gate.login("guest", b"a first guess", "10.0.0.66")
    slowly.go()
    guesses = [gate.login("guest", b"%d" % number, "10.0.0.66") for number in range(3000)]
    assert guesses.count([]) == 8

    answers = gate.login("guest", b"guest", "127.0.0.1")
    slowly.go()

    assert answers == [gate.access.account("guest")]
    assert guesses == [[None]] * 3000
    assert gate.login("guest", b"one more guess", "10.0.0.66") == [], "they do not count for ever"


def test_a_user_without_a_password_comes_in_with_a_certificate_only(gate: Gate) -> None:
    gate.add("device", None)
    assert gate.login("device", None) == [gate.access.account("device")]
    for password in (b"", b"guest"):
        answers = gate.login("device", password)
        while gate.background.waiting:
            gate.background.pass_time()
        assert answers == [None]


def test_a_certificate_of_no_user_is_refused(gate: Gate) -> None:
    answers = gate.login("stranger", None)
    gate.background.pass_time()
    assert answers == [None]


def test_without_permission_there_is_no_way_in_and_taking_it_away_counts_at_once(gate: Gate) -> None:
    gate.add("ann")
    assert gate.access.rights(gate.access.account("ann"), "/") is None
    gate.access.put_permission(Permission("ann", "/", *ALL), must)
    rights = gate.access.rights(gate.access.account("ann"), "/")
    assert rights is not None
    rights.check(WRITE, "exchange", "x")

    gate.access.delete_permission("ann", "/", must)

    with pytest.raises(AccessRefused):
        rights.check(WRITE, "exchange", "x")
    assert gate.access.rights(gate.access.account("ann"), "/") is None


def test_a_removed_user_is_told_to_go_and_leaves_no_permissions(gate: Gate) -> None:
    gate.add("ann")
    gate.access.put_permission(Permission("ann", "/", *ALL), must)
    gate.access.put_topic_permission(TopicPermission("ann", "/", "amq.topic", "", ""), must)
    told: list[str] = []
    gate.access.account("ann").on_removed["me"] = told.append

    gate.access.delete_user("ann", must)
    gate.engine.sync()

    assert told == ["user 'ann' is deleted"]
    assert [permission.user for permission in gate.access.permissions()] == ["guest"]
    assert gate.access.topic_permissions() == []
    with pytest.raises(NotFound, match="no user 'ann'"):
        gate.access.account("ann")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "\ud800"])
def test_names_that_cannot_be_are_refused(gate: Gate, name: str) -> None:
    with pytest.raises(Refused, match="user name"):
        gate.access.put_user(name, "secret", (), must)


def test_what_makes_no_sense_is_refused_and_says_what(gate: Gate) -> None:
    gate.add("ann")
    with pytest.raises(Refused, match="password of user 'ann'"):
        gate.access.put_user("ann", "", (), must)
    with pytest.raises(Refused, match="not a tag"):
        gate.access.put_user("ann", "x", ["a,b"], must)
    with pytest.raises(NotFound, match="no user 'bob'"):
        gate.access.put_permission(Permission("bob", "/"), must)
    with pytest.raises(NotFound, match="no vhost 'eu'"):
        gate.access.put_permission(Permission("ann", "eu"), must)
    with pytest.raises(Refused, match="there is no key 'max-cats'"):
        Limits.from_json({"max-cats": 9})
    with pytest.raises(Refused, match="whole number"):
        Limits.from_json({"max-channels": "many"})
    with pytest.raises(NotFound):
        gate.access.delete_permission("ann", "/", must)
    with pytest.raises(NotFound):
        gate.access.delete_topic_permissions("ann", "/", must)


def test_a_change_that_cannot_be_stored_is_taken_back() -> None:
    engine = RefusingEngine()
    gate = Gate(engine)
    gate.add("ann")
    engine.failure = Unavailable("the disk is full")
    engine.fails_all = True
    errors: list[HeadraceError | None] = []
    gate.access.delete_user("guest", errors.append)
    gate.access.put_user("bob", None, (), errors.append)
    gate.access.set_limits("ann", Limits(max_channels=1), errors.append)

    engine.sync()

    assert [str(error) for error in errors] == ["the disk is full"] * 3
    assert [user.name for user in gate.access.users()] == ["ann", "guest"]
    assert gate.access.account("ann").user.limits == Limits()
    assert gate.access.rights(gate.access.account("guest"), "/") is not None


def test_the_hash_is_in_storage_and_the_password_is_not(gate: Gate) -> None:
    gate.add("ann", "correct horse")
    stored = gate.engine.get(USERS, b"ann")
    assert stored is not None
    assert b"$argon2id$" in stored
    assert b"correct horse" not in stored
    assert "argon2" not in repr(gate.access.account("ann").user)


def test_what_a_later_release_has_stored_is_read_as_far_as_it_is_known(gate: Gate) -> None:
    gate.add("ann")
    commit = Commit()
    user = {
        "name": "ann",
        "password_hash": "",
        "tags": ["x"],
        "limits": {"max-channels": 3, "max-cats": 9},
        "hat": "red",
    }
    permission = {"user": "ann", "host": "/", "configure": "a", "write": "b", "read": "c", "smell": "d"}
    commit.put(USERS, b"ann", json.dumps(user).encode())
    commit.put(PERMISSIONS, b"/\0ann", json.dumps(permission).encode())
    gate.engine.commit(commit, must)
    gate.engine.sync()

    again = Gate(gate.engine).access

    assert again.account("ann").user == User("ann", "", ("x",), Limits(max_channels=3))
    assert Permission("ann", "/", "a", "b", "c") in again.permissions()


def test_limits_count_connections_and_channels_of_all_connections() -> None:
    account = Account(User("ann", limits=Limits(max_connections=2, max_channels=1)))
    assert [account.connect() for _ in range(3)] == [True, True, False]
    account.disconnect()
    assert account.connect()
    assert [account.open_channel() for _ in range(2)] == [True, False]
    account.close_channel()
    assert account.open_channel()


def test_who_sends_more_than_its_rate_has_to_wait_for_the_difference() -> None:
    account = Account(User("ann", limits=Limits(max_message_rate=100)))
    assert account.is_metered
    assert account.spend(100, 10_000_000) == 0, "a second's worth may come at once"
    assert account.spend(50, 10_000_000) == 500_000
    assert account.spend(0, 10_500_000) == 0
    assert account.spend(300, 60_000_000) == 2_000_000


def test_a_message_larger_than_the_user_may_send_is_refused() -> None:
    account = Account(User("ann", limits=Limits(max_message_bytes=10)))
    account.check_size(10)
    with pytest.raises(TooLarge, match="message size 11 is larger than the 10 bytes that user 'ann' may send"):
        account.check_size(11)


def test_a_permission_is_gone_once_what_sessions_lose_by_it_is_gone_too() -> None:
    """After a power loss in between, a session would collect messages again that its user may not read."""
    engine = RefusingEngine()
    house = House(engine)
    _, access = access_to(house.broker, engine, house.clock)
    session = Listener(house, "c", lifetime_s=60, user="guest")
    session.subscribe("a", AT_LEAST_ONCE)
    house.run()
    engine.is_closed_door = True
    told: list[HeadraceError | None] = []
    access.delete_permission("guest", "/", told.append)
    house.run()

    engine.let_one_in()
    house.run()
    assert told == []

    engine.open_door()
    house.run()
    assert told == [None]
