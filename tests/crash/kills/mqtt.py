"""Clients of MQTT 3.1.1 and 5, by paho: sessions that are kept, both levels of assurance, shares, queues, retained."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import final

import paho.mqtt.client as paho

from tests.crash.kills.book import Book, Found
from tests.crash.kills.message import body_of, number_of, uid_of, uids_in_order
from tests.crash.kills.part import Part, drained
from tests.paho_helpers import Paho, told, wait_for
from tests.servers import Server

_WINDOW = 30
_FOR_EVER_S = 0xFFFFFFFE
_RETAINED_TOPICS = 20
_QUEUE = "mqtt.jobs"
_END = "end"
_UNKNOWN_IDENTIFIER = 0x92


@final
class Reader:
    """A client with a session that is kept; remembers the identifiers of all messages, in order of their arrival."""

    def __init__(self, server: Server, name: str, version: int, gate: threading.Event) -> None:
        self._server = server
        self.name = name
        self._version = version
        self._gate = gate
        self._paho: Paho | None = None
        self.uids: list[str] = []
        self.wrong: list[str] = []
        self.ends: set[str] = set()
        self.is_present = False

    def connect(self) -> Paho:
        client = Paho(
            self._server.mqtt_port,
            self.name,
            self._version,
            clean=False,
            expiry_s=_FOR_EVER_S,
            inflight=_WINDOW,
            gate=self._gate,
            on_message=self._on_message,
        )
        client.client.reconnect_delay_set(1, 1)
        self.is_present = client.present
        self._paho = client
        return client

    def disconnect(self) -> None:
        if self._paho is not None:
            self._paho.close()
            self._paho = None

    def _on_message(self, client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        uid = message.topic.rpartition("/")[2]
        if uid.startswith(_END):
            self.ends.add(uid)
            return
        if bytes(message.payload) != body_of(uid):
            self.wrong.append(f"{self.name}: {uid} is damaged")
        self.uids.append(uid)

    def take(self) -> list[str]:
        uids, self.uids = self.uids, []
        return uids


@final
class Writer:
    """A client with a session that is kept: what it did not finish before a crash it finishes afterwards."""

    def __init__(self, server: Server, name: str, version: int, qos: int, gate: threading.Event) -> None:
        self.qos = qos
        self.name = name
        self.client = Paho(
            server.mqtt_port, name, version, clean=False, expiry_s=_FOR_EVER_S, inflight=_WINDOW, gate=gate
        )
        self.client.client.reconnect_delay_set(1, 1)
        self.under_way: dict[int, str] = {}
        self.sent: list[str] = []
        self.acked = 0

    def publish(self, topic: str, payload: bytes, uid: str) -> None:
        self.sent.append(uid)
        self.under_way[self.client.publish(topic, payload, self.qos)] = uid

    def settle(self) -> None:
        """Look through the answers."""
        for mid in list(self.client.acked):
            reason = self.client.acked.pop(mid)
            # After a crash a broker may have forgotten an identifier that it had released: MQTT 5 [4.3.3].
            if reason is not None and reason.is_failure and reason.value != _UNKNOWN_IDENTIFIER:
                raise AssertionError(f"{self.name} was refused: {reason}")
            if self.under_way.pop(mid, None) is not None:
                self.acked += 1


class Mqtt(Part):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._gate = threading.Event()
        self._gate.set()
        self.jobs = Book("mqtt.jobs", in_order=False)
        self.passing = Book("passing writers")
        self._retained: dict[str, tuple[bytes, set[bytes]]] = {}
        self.retained_answers = 0
        self._passing_qos = 1

    def set_up(self) -> None:
        self.server.connect().channel().queue_declare(
            _QUEUE, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mqtt.dead"}
        )
        self.server.connect().channel().queue_declare("mqtt.dead", durable=True)
        new = self._gate
        self.live = [Reader(self.server, f"live{version}", version, new) for version in (4, 5)]
        self.once = [Reader(self.server, f"once{version}", version, new) for version in (4, 5)]
        self.away = [Reader(self.server, f"away{version}", version, new) for version in (4, 5)]
        self.members = [Reader(self.server, f"member{number}", 5, new) for number in range(2)]
        for qos, readers in ((1, self.live), (2, self.once), (2, self.away)):
            for reader in readers:
                reader.connect().subscribe("m/#", qos)
                self.facts.told(f"session {reader.name}", True)
        for member in self.members:
            member.connect().subscribe("$share/team/m/#", 2)
        for reader in self.away:
            reader.disconnect()
        self.writers = [
            Writer(self.server, f"writer{version}{qos}", version, qos, new) for version in (4, 5) for qos in (1, 2)
        ]

    def counts(self) -> dict[str, int]:
        return {
            **{f"{writer.name} acked": writer.acked for writer in self.writers},
            "mqtt passing": self.passing.confirmed,
            "mqtt jobs": self.jobs.confirmed,
            "mqtt jobs settled": self.jobs.settled,
            "retained": self.retained_answers,
            "mqtt facts": self.facts.count,
        }

    def close(self) -> None:
        for reader in (*self.live, *self.once, *self.members):
            reader.disconnect()
        for writer in self.writers:
            writer.client.close()

    def begin(self, number: int) -> None:
        self._wait_connected()
        super().begin(number)

    def shut(self) -> None:
        """Keep clients from trying to connect: paho forgets what it released when it tries in vain."""
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    def _wait_connected(self) -> None:
        clients = [reader._paho for reader in (*self.live, *self.once, *self.members)]
        for client in (*clients, *[writer.client for writer in self.writers]):
            assert client is not None
            wait_for(client.client.is_connected)

    def work(self) -> list[Callable[[], None]]:
        return [
            self._write,
            self._write_passing,
            self._leave_will,
            self._retain,
            self._feed_queue,
            self._work_queue,
            self._come_and_go,
        ]

    def _write(self) -> None:
        for number in range(1 << 30):
            for writer in self.writers:
                if self.over.is_set():
                    return
                writer.settle()
                if len(writer.under_way) < _WINDOW:
                    uid = uid_of(self.publisher(writer.name), number)
                    writer.publish(f"m/{writer.name}/{uid}", body_of(uid), uid)
            time.sleep(0.004)

    def _write_passing(self) -> None:
        """A client of no session, whose messages are sent once: they are there once or, unanswered, perhaps not."""
        client = Paho(self.server.mqtt_port, f"passing{self.round}", random.choice((4, 5)), over=self.over)
        publisher = self.publisher("passing")
        qos = self._passing_qos = random.choice((1, 2))  # order is kept for each
        try:
            for number in range(1 << 30):
                uid = uid_of(publisher, number)
                self.passing.sending(uid)
                mid = client.publish(f"m/passing/{uid}", body_of(uid), qos)
                client.wait_for(lambda mid=mid: mid in client.acked)  # type: ignore[misc]
                self.passing.told(uid)
        finally:
            client.drop()

    def _leave_will(self) -> None:
        """A client that is connected when the broker dies: its will is published once the broker is back."""
        uid = f"{self.publisher('will')}-0-{self.round % 1000}"  # CONNECT has room for 64 KiB
        self.passing.sending(uid)
        will = (f"m/will/{uid}", body_of(uid), random.choice((1, 2)))
        client = Paho(self.server.mqtt_port, f"will{self.round}", random.choice((4, 5)), over=self.over, will=will)
        self.passing.told(uid)
        self.over.wait()
        time.sleep(0.2)  # it stays until the broker is gone
        client.drop()

    def _retain(self) -> None:
        client = Paho(self.server.mqtt_port, f"retaining{self.round}", 5, over=self.over)
        try:
            for number in range(1 << 30):
                topic = f"kept/{number % _RETAINED_TOPICS}"
                payload = b"" if number % 7 == 3 else b"%d.%d" % (self.round, number)
                last, maybe = self._retained.get(topic, (b"", set()))
                self._retained[topic] = (last, {*maybe, payload})
                mid = client.publish(topic, payload, 1 + number % 2, retain=True)
                client.wait_for(lambda mid=mid: mid in client.acked)  # type: ignore[misc]
                self._retained[topic] = (payload, set())
                self.retained_answers += 1
        finally:
            client.drop()

    def _feed_queue(self) -> None:
        client = Paho(self.server.mqtt_port, f"feeding{self.round}", 5, over=self.over)
        publisher = self.publisher("feed")
        try:
            for number in range(1 << 30):
                uid = uid_of(publisher, number)
                self.jobs.sending(uid)
                mid = client.publish(f"$queue/{_QUEUE}/{uid}", body_of(uid), 1 + number % 2)
                client.wait_for(lambda mid=mid: mid in client.acked)  # type: ignore[misc]
                self.jobs.told(uid)
        finally:
            client.drop()

    def _work_queue(self) -> None:
        """A member of a group that acknowledges by publishing; of each ten messages it rejects one and keeps one."""
        client = Paho(self.server.mqtt_port, f"worker{self.round}", 5, over=self.over)
        client.subscribe(f"$queue/{_QUEUE}/#", 1, user=[("consumer-group", "workers")])
        done = 0
        acks: dict[int, str] = {}
        try:
            while not self.over.is_set():
                for message in client.messages[done : done + 20]:
                    done += 1
                    uid = message.topic.rpartition("/")[2]
                    self.jobs.given(uid)
                    how = {0: "", 1: "$reject"}.get(number_of(uid) % 10, "$ack")
                    if not how:
                        continue
                    self.jobs.settling(uid, rejected=how == "$reject")
                    named = told(message)
                    properties = [(name, named[name]) for name in ("message-id", "group-id")]
                    acks[client.publish(f"$queue/{_QUEUE}/{how}", b"", 1, UserProperty=properties)] = uid
                for mid in list(client.acked):
                    reason = client.acked.pop(mid)
                    uid = acks.pop(mid)
                    if reason.is_failure:
                        raise AssertionError(f"{uid}: settling was refused: {reason}")
                    self.jobs.ended([uid], is_answered=True)
                time.sleep(0.002)
        finally:
            client.drop()

    def _come_and_go(self) -> None:
        """Sessions that begin, and some that a clean start ends."""
        number = 0
        while not self.over.is_set():
            number += 1
            name = f"s{self.round}.{number}"
            self.facts.asking(f"session {name}", True)
            client = Paho(self.server.mqtt_port, name, 4, clean=False, over=self.over)
            self.facts.told(f"session {name}", True)
            client.close()
            if number % 2 == 0:
                self.facts.asking(f"session {name}", False)
                client = Paho(self.server.mqtt_port, name, 4, clean=True, over=self.over)
                self.facts.told(f"session {name}", False)  # one that is not kept ends with its connection
                client.close()

    # -- after the kill

    def check(self, killed_at: float) -> list[str]:
        self._wait_connected()
        for writer in self.writers:
            wait_for(lambda writer=writer: writer.settle() or not writer.under_way)  # type: ignore[misc]
        for reader in self.away:
            reader.connect()
        problems = [f"{one.name}: the session is gone" for one in (*self.away,) if not one.is_present]
        end = f"{_END}{self.round}"
        last = Paho(self.server.mqtt_port, "last", 5)
        last.sure(f"m/end/{end}", b"", 2)
        readers = [*self.live, *self.once, *self.away]
        for reader in readers:
            try:
                wait_for(lambda reader=reader: end in reader.ends)  # type: ignore[misc]
            except AssertionError:
                problems.append(f"{reader.name}: the last message does not come")
        try:
            wait_for(lambda: any([end in member.ends for member in self.members]))
        except AssertionError:
            problems.append("members: the last message does not come")
        sent = {uid: writer.qos for writer in self.writers for uid in writer.sent}
        for writer in self.writers:
            writer.sent.clear()
        for reader in readers:
            problems += self._check_reader(reader, sent, reader not in self.live)
        problems += self._check_members(sent)
        self.passing.entries.clear()
        problems += self._check_retained(last)
        last.close()
        problems += self._check_queue(killed_at)
        for reader in self.away:
            reader.disconnect()
        return problems

    def _check_reader(self, reader: Reader, sent: dict[str, int], is_once: bool) -> list[str]:
        uids = reader.take()
        problems, reader.wrong = reader.wrong, []
        counts = Counter(uids)
        passing = self.passing.entries
        for uid in sent:
            if not counts[uid]:
                problems.append(f"{reader.name}: {uid} is LOST")
        for uid, entry in passing.items():
            if entry.confirmed_at and not counts[uid]:
                problems.append(f"{reader.name}: {uid} is LOST")
        for uid, count in counts.items():
            if uid not in sent and uid not in passing:
                problems.append(f"{reader.name}: {uid} is unknown, or came back")
            if count > 1 and is_once and sent.get(uid, self._passing_qos) == 2:
                problems.append(f"{reader.name}: {uid} came {count} times")
        if uid := uids_in_order(list(dict.fromkeys(uids))):
            problems.append(f"{reader.name}: {uid} is out of order")
        return problems[:5]

    def _check_members(self, sent: dict[str, int]) -> list[str]:
        """What both together got: they may still be sent something while this looks, as only one gets the end."""
        passing = [uid for uid, entry in self.passing.entries.items() if entry.confirmed_at]

        def missing() -> list[str]:
            there = {uid for member in self.members for uid in member.uids}
            return [uid for uid in (*sent, *passing) if uid not in there]

        try:
            wait_for(lambda: not missing(), 30)
        except AssertionError:
            lost = missing()
            return [f"members: {uid} is LOST" for uid in lost[:3]] + [f"members: {len(lost)} lost of {len(sent)}"]
        counts = Counter([uid for member in self.members for uid in member.take()])
        return [
            f"members: {uid} came {count} times" for uid, count in counts.items() if count > 1 and sent.get(uid) == 2
        ][:5]

    def _check_retained(self, last: Paho) -> list[str]:
        before = len(last.messages)
        last.subscribe("kept/#", 1)
        last.sure("kept/end", b"", 1)
        wait_for(lambda: any([one.topic == "kept/end" for one in last.messages]))
        there = {one.topic: bytes(one.payload) for one in last.messages[before:] if one.topic != "kept/end"}
        problems = [
            f"retained {topic} is {there.get(topic, b'')!r}, not {value!r} or one of {maybe}"
            for topic, (value, maybe) in self._retained.items()
            if there.get(topic, b"") not in {value, *maybe}
        ]
        self._retained = {topic: (there.get(topic, b""), set()) for topic in self._retained}
        return problems

    def _check_queue(self, killed_at: float) -> list[str]:
        """Every message of the queue once, by a new member of the group; what died is in the other queue."""
        client = Paho(self.server.mqtt_port, f"checking{self.round}", 5)
        client.subscribe(f"$queue/{_QUEUE}/#", 1, user=[("consumer-group", "workers")])
        end = f"{_END}-{self.round}-0"
        client.sure(f"$queue/{_QUEUE}/{end}", b"", 1)
        found: list[Found] = []
        problems: list[str] = []
        done = 0
        is_ended = False
        deadline = time.monotonic() + 60

        def is_all() -> bool:
            got = {one.uid for one in found}
            wanted = [uid for uid, entry in self.jobs.entries.items() if entry.confirmed_at and not entry.settling_at]
            return is_ended and all([uid in got for uid in wanted])

        while not is_all() and time.monotonic() < deadline:
            if done == len(client.messages):
                time.sleep(0.005)
                continue
            message = client.messages[done]
            done += 1
            uid = message.topic.rpartition("/")[2]
            named = told(message)
            properties = [(name, named[name]) for name in ("message-id", "group-id")]
            client.sure(f"$queue/{_QUEUE}/$ack", b"", 1, UserProperty=properties)
            if uid == end:
                is_ended = True
            else:
                found.append(Found(uid, None, "" if bytes(message.payload) == body_of(uid) else "its payload"))
        if not is_ended:
            problems.append("mqtt.jobs: the last message does not come")
        client.close()
        dead = drained(self.server, "mqtt.dead")
        problems += self.jobs.check(found, killed_at, dead)
        self.jobs.drained([*found, *dead])
        return problems
