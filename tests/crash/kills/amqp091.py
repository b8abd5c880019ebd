"""Clients of AMQP 0-9-1, by pika and aio-pika: confirms, returns, transactions, consumers of every temper, limits."""

import asyncio
import random
import time
from collections.abc import Callable

import aio_pika
import pika
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError, PublishError
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from tests.crash.kills.book import SETTLED_SECONDS, Book, Found
from tests.crash.kills.message import body_of, headers_of, number_of, priority_of, publisher_of, uid_of, uids_in_order
from tests.crash.kills.part import Part, drained, got
from tests.servers import Server

_WINDOW = 40
_CAP = 60
_TTL_S = 1.5
_MOVES_SECONDS = 10.0
_EXCHANGE = "kills"
_KEPT_THINGS = 6


class Amqp091(Part):
    """Publishers to a topic exchange and to queues with limits, consumers that acknowledge, reject or sleep."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.still = Book("still", is_watched=False)
        self.quorum = Book("quorum", is_watched=False)
        self.work_queue = Book("work")
        self.priorities = Book("priorities", in_order=False, is_watched=False)
        self.brief = Book("brief", is_watched=False)
        self.expiring = Book("expiring", is_watched=False)
        self.cap = Book("cap")
        self.head = Book("head", is_watched=False)
        self.purged = Book("purged", is_watched=False)
        self.got = Book("got")
        self.moves = Moves("tx")
        self.books = [
            self.still,
            self.quorum,
            self.work_queue,
            self.priorities,
            self.brief,
            self.expiring,
            self.cap,
            self.head,
            self.purged,
            self.got,
        ]
        self._stream_read = 0
        self._in_still: set[str] = set()

    def set_up(self) -> None:
        channel = self.server.connect().channel()
        channel.exchange_declare(_EXCHANGE, "topic", durable=True)
        channel.exchange_declare("kills.dead", "direct", durable=True)
        limited = {"x-max-length": _CAP}
        dead = {"x-dead-letter-exchange": "kills.dead"}
        queues: dict[str, dict[str, object]] = {
            "still": {},
            "quorum": {"x-queue-type": "quorum"},
            "log": {"x-queue-type": "stream"},
            "work": {**dead, "x-dead-letter-routing-key": "work.dead"},
            "priorities": {"x-max-priority": 5},
            "brief": {**dead, "x-dead-letter-routing-key": "brief.dead", "x-message-ttl": int(_TTL_S * 1000)},
            "expiring": {},
            "cap": {**limited, "x-overflow": "reject-publish"},
            "head": {**limited, **dead, "x-dead-letter-routing-key": "head.dead"},
            "purged": {},
            "got": {},
            **{name: {} for name in self.moves.queues},
        }
        for name, arguments in queues.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
        for name in ("work.dead", "brief.dead", "head.dead"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "kills.dead", name)
        for name, key in (("still", "#"), ("log", "#"), ("work", "red.#"), ("quorum", "blue.#")):
            channel.queue_bind(name, _EXCHANGE, key)

    def work(self) -> list[Callable[[], None]]:
        return [self._crowd, self._publish_to_limits, self._transact, self._declare, self._get]

    def counts(self) -> dict[str, int]:
        counts = {f"{book.name} confirmed": book.confirmed for book in self.books if book is not self.got}
        return {
            **counts,
            "work settled": self.work_queue.settled,
            "got settled": self.got.settled,
            "tx committed": self.moves.committed,
            "amqp091 facts": self.facts.count,
        }

    # -- aio-pika: many confirms under way, and consumers of one queue

    def _crowd(self) -> None:
        asyncio.run(self._crowd_in_loop())

    async def _crowd_in_loop(self) -> None:
        connection = await aio_pika.connect(self.server.url)
        publishing = [self._publish_all(connection, f"aio{number}") for number in range(2)]
        consuming = [self._consume(connection, temper) for temper in ("ack", "sleep", "reject", "requeue")]
        await asyncio.gather(*publishing, *consuming)

    async def _publish_all(self, connection: aio_pika.abc.AbstractConnection, name: str) -> None:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.get_exchange(_EXCHANGE, ensure=False)
        publisher = self.publisher(name)
        room = asyncio.Semaphore(_WINDOW)
        under_way: set[asyncio.Task[None]] = set()
        for number in range(1 << 30):
            await room.acquire()
            uid = uid_of(publisher, number)
            color = ("red", "blue", "green")[number % 3]
            for book in self._books_of(color):
                book.sending(uid)
            task = asyncio.create_task(self._publish_one(exchange, channel.default_exchange, uid, color))
            under_way.add(task)
            task.add_done_callback(lambda task: _finish(task, room, under_way))
            if self.over.is_set() or channel.is_closed:
                return
            await asyncio.sleep(0.001)

    def _books_of(self, color: str) -> list[Book]:
        return [self.still, *{"red": [self.work_queue], "blue": [self.quorum], "green": []}[color]]

    async def _publish_one(
        self, exchange: aio_pika.abc.AbstractExchange, nowhere: aio_pika.abc.AbstractExchange, uid: str, color: str
    ) -> None:
        message = aio_pika.Message(
            body_of(uid),
            headers=headers_of(uid),  # type: ignore[arg-type]
            message_id=uid,
            app_id="headers",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        try:
            await exchange.publish(message, f"{color}.{uid}", mandatory=True)
        except (PublishError, DeliveryError) as error:
            self.wrong.append(f"{uid} was refused: {error!r}")
            return
        for book in self._books_of(color):
            book.told(uid)
        if number_of(uid) % 50 == 0:
            try:
                await nowhere.publish(aio_pika.Message(b"", message_id=uid), f"nowhere.{uid}", mandatory=True)
            except PublishError:
                return
            self.wrong.append(f"{uid} was taken, and no queue was meant for it")

    async def _consume(self, connection: aio_pika.abc.AbstractConnection, temper: str) -> None:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count={"ack": 20, "sleep": 15, "reject": 5, "requeue": 3}[temper])
        queue = await channel.get_queue("work", ensure=False)
        settled: list[str] = []
        async with queue.iterator() as messages:
            async for message in messages:
                self.work_queue.given(str(message.message_id))
                await self._handle(temper, message, settled)
                if len(settled) >= 20:
                    await channel.get_queue("work", ensure=True)  # a round trip: the broker has all settlements
                    self.work_queue.ended(settled)
                    settled.clear()

    async def _handle(self, temper: str, message: AbstractIncomingMessage, settled: list[str]) -> None:
        uid = str(message.message_id)
        if temper == "requeue":
            await asyncio.sleep(0.05)
            await message.nack(requeue=True)
        elif temper != "sleep":
            self.work_queue.settling(uid, rejected=temper == "reject")
            await (message.ack() if temper == "ack" else message.reject(requeue=False))
            settled.append(uid)
            await asyncio.sleep(0.002)

    # -- pika: one confirm at a time, to queues with limits

    def _publish_to_limits(self) -> None:
        channel = self._channel()
        channel.confirm_delivery()
        names = {book.name: self.publisher(book.name) for book in self.books}
        purged: list[str] = []
        for number in range(1 << 30):
            for book in (self.priorities, self.brief, self.expiring, self.cap, self.head, self.purged):
                uid = uid_of(names[book.name], number)
                expires_s = 0.0
                if book is self.brief:
                    expires_s = _TTL_S
                elif book is self.expiring:
                    expires_s = random.choice((0.0, 0.3, 1.0, 2.5))
                book.sending(uid, expires_s)
                properties = _properties(uid, expires_s if book is self.expiring else 0.0)
                try:
                    channel.basic_publish("", book.name, body_of(uid), properties, mandatory=True)
                    book.told(uid)
                except NackError:
                    book.refused(uid)
                except UnroutableError as error:
                    raise AssertionError(f"{book.name} is not there") from error
                if book is self.purged:
                    purged.append(uid)
            if number % 30 == 29:
                for uid in purged:
                    self.purged.settling(uid)
                channel.queue_purge("purged")
                self.purged.ended(purged, is_answered=True)
                purged.clear()
            if number % 40 == 39:
                self._make_room(channel)

    def _make_room(self, channel: BlockingChannel) -> None:
        taken: list[str] = []
        for _ in range(_CAP // 2):
            method, properties, _ = channel.basic_get("cap")
            if method is None:
                break
            self.cap.settling(properties.message_id)
            channel.basic_ack(method.delivery_tag)
            taken.append(properties.message_id)
        channel.queue_declare("cap", passive=True)
        self.cap.ended(taken)

    def _get(self) -> None:
        """Publish a few and get them back, on one channel without confirms."""
        channel = self._channel()
        publisher = self.publisher("got")
        for number in range(1 << 30):
            uid = uid_of(publisher, number)
            self.got.sending(uid)
            channel.basic_publish("", "got", body_of(uid), _properties(uid))
            if number % 10 == 9:
                for _ in range(5):
                    method, properties, _ = channel.basic_get("got")
                    if method is None:
                        raise AssertionError("a channel does not get what it published before")
                    self.got.given(properties.message_id)
                    self.got.settling(properties.message_id)
                    channel.basic_ack(method.delivery_tag)
                    self.got.ended([properties.message_id])  # the next answer comes after it

    def _transact(self) -> None:
        """Move messages from one queue to two others, in transactions that end one way or the other."""
        channel = self._channel()
        feeding = channel.connection.channel()
        feeding.confirm_delivery()
        channel.tx_select()
        publisher = self.publisher("tx")
        inbox, left, right = self.moves.queues
        for number in range(1 << 30):
            uid = uid_of(publisher, number)
            self.moves.inbox.sending(uid)
            feeding.basic_publish("", inbox, body_of(uid), _properties(uid))
            self.moves.inbox.told(uid)
            if number % 3 == 0:
                continue
            method, properties, body = channel.basic_get(inbox)
            if method is None:
                continue
            moved = str(properties.message_id)
            for queue in (left, right):
                channel.basic_publish("", queue, body, _properties(moved))
            channel.basic_ack(method.delivery_tag)
            if number % 5 == 4:
                channel.tx_rollback()
                channel.basic_nack(method.delivery_tag, requeue=True)
                channel.tx_commit()
            else:
                self.moves.committing(moved)
                channel.tx_commit()
                self.moves.told(moved)

    # -- pika: things that come and go

    def _declare(self) -> None:
        channel = self._channel()
        own = channel.queue_declare("", exclusive=True).method.queue
        self.facts.told(f"queue {own}", False)  # it ends with its connection
        for number in range(1 << 30):
            name = f"r{self.round}.{number}"
            self._fact(f"queue {name}", True, channel.queue_declare, name, durable=True)
            self._fact(f"exchange x{name}", True, channel.exchange_declare, f"x{name}", "fanout", durable=True)
            self._fact(f"binding x{name} to {name} by k", True, channel.queue_bind, name, f"x{name}", "k")
            self._fact(f"binding amq.topic to {name} by a.#", True, channel.queue_bind, name, "amq.topic", "a.#")
            self._fact(f"binding amq.topic to {name} by a.#", False, channel.queue_unbind, name, "amq.topic", "a.#")
            self._fact(f"queue brief{name}", True, channel.queue_declare, f"brief{name}", durable=True)
            self._fact(f"queue brief{name}", False, channel.queue_delete, f"brief{name}")
            if number >= _KEPT_THINGS:
                old = f"r{self.round}.{number - _KEPT_THINGS}"
                self.facts.asking(f"binding x{old} to {old} by k", False)
                self._fact(f"exchange x{old}", False, channel.exchange_delete, f"x{old}")
                self._fact(f"queue {old}", False, channel.queue_delete, old)
                self.facts.told(f"binding x{old} to {old} by k", False)
            # A queue that is not durable lives as long as its broker.
            self.facts.told(f"queue passing{name}", False)
            channel.queue_declare(f"passing{name}", durable=False, auto_delete=number % 2 == 0)
            channel.basic_publish("", own, b"own")
            channel.basic_publish("", f"passing{name}", b"passing")

    def _fact(self, fact: str, value: bool, step: Callable[..., object], *names: str, **options: bool) -> None:
        """Ask for something, and remember the answer."""
        self.facts.asking(fact, value)
        step(*names, **options)
        self.facts.told(fact, value)

    def _channel(self) -> BlockingChannel:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.server.port)).channel()

    # -- after the kill

    def check(self, killed_at: float) -> list[str]:
        problems: list[str] = []
        channel = self.server.connect().channel()
        problems += self._check_brief(channel, killed_at)
        found = got(channel, "expiring")
        problems += self.expiring.check(found, killed_at)
        self.expiring.drained(found)
        for book in (self.work_queue, self.head):
            dead = drained(self.server, f"{book.name}.dead")
            found = drained(self.server, book.name)
            problems += book.check(found, killed_at, dead)
            book.drained([*found, *dead])
        return [
            *problems,
            *self._check_fan_out(killed_at),
            *self._check_priorities(killed_at),
            *[problem for book in (self.cap, self.got, self.purged) for problem in self._check_plain(book, killed_at)],
            *self.moves.check(self.server, killed_at),
            *self._check_stream(channel),
        ]

    def _check_brief(self, channel: BlockingChannel, killed_at: float) -> list[str]:
        """A message that expires now is in neither queue until that is stored."""
        wanted = {uid for uid, entry in self.brief.entries.items() if entry.confirmed_at and not entry.settling_at}
        found: list[Found] = []
        dead: list[Found] = []
        deadline = time.monotonic() + _MOVES_SECONDS
        while True:
            found += got(channel, "brief")
            dead += got(channel, "brief.dead")
            if time.monotonic() > deadline or wanted <= {one.uid for one in (*found, *dead)}:
                break
        problems = self.brief.check(found, killed_at, dead)
        self.brief.drained([*found, *dead])
        return problems

    def _check_plain(self, book: Book, killed_at: float) -> list[str]:
        found = drained(self.server, book.name)
        problems = book.check(found, killed_at)
        if book is self.cap and len(found) > _CAP:
            problems.append(f"cap has {len(found)} messages")
        book.drained(found)
        return problems

    def _check_fan_out(self, killed_at: float) -> list[str]:
        entries = self.still.entries.items()
        blue = {uid for uid, entry in entries if number_of(uid) % 3 == 1 and not entry.settling_at}
        leaves = random.random() < 0.3
        still = drained(self.server, "still", not leaves)
        quorum = drained(self.server, "quorum", not leaves)
        problems = self.still.check(still, killed_at) + self.quorum.check(quorum, killed_at)
        odd = blue & ({one.uid for one in still} ^ {one.uid for one in quorum})
        problems += [f"{uid} is in one of two queues" for uid in sorted(odd)[:3]]
        self._in_still = {one.uid for one in still}
        for book, found in ((self.still, still), (self.quorum, quorum)):
            if leaves:
                book.looked_at(found)
            else:
                book.drained(found)
        return problems

    def _check_priorities(self, killed_at: float) -> list[str]:
        found = drained(self.server, "priorities")
        problems = self.priorities.check(found, killed_at)
        ranks = [(-priority_of(one.uid), publisher_of(one.uid), number_of(one.uid)) for one in found]
        if ranks != sorted(ranks, key=lambda rank: rank[0]):
            problems.append("priorities are not in order")
        numbers: dict[tuple[int, str], int] = {}
        for priority, publisher, number in ranks:
            if numbers.get((priority, publisher), -1) >= number:
                problems.append(f"priorities: {publisher}-{number} is out of order")
            numbers[priority, publisher] = number
        self.priorities.drained(found)
        return problems

    def _check_stream(self, channel: BlockingChannel) -> list[str]:
        """The stream has what `still` has of this round, in the same order."""
        channel.basic_qos(prefetch_count=100)
        publishers = (self.publisher("aio0"), self.publisher("aio1"))
        missing = {uid for uid in self._in_still if publisher_of(uid) in publishers}
        found: list[str] = []
        reading = channel.consume("log", inactivity_timeout=20, arguments={"x-stream-offset": self._stream_read})
        while missing:
            method, properties, body = next(reading)
            if method is None:
                return [f"log: {uid} is LOST, and is in still" for uid in sorted(missing)[:3]]
            uid = str(properties.message_id)
            self._stream_read = int(properties.headers["x-stream-offset"]) + 1
            channel.basic_ack(method.delivery_tag)
            if body != body_of(uid):
                return [f"log: {uid} is damaged"]
            found.append(uid)
            missing.discard(uid)
        channel.cancel()
        ours = [uid for uid in found if publisher_of(uid) in publishers]
        problems = [f"log: {uid} is there, and not in still" for uid in ours if uid not in self._in_still]
        if uid := uids_in_order(found):
            problems.append(f"log: {uid} is out of order or doubled")
        return problems


def _finish(task: asyncio.Task[None], room: asyncio.Semaphore, under_way: set[asyncio.Task[None]]) -> None:
    """A publish is answered, or its connection is lost: then the others say so."""
    room.release()
    under_way.discard(task)
    if not task.cancelled():
        task.exception()


class Moves:
    """Messages that transactions move from one queue to two others: all of it, or nothing."""

    def __init__(self, name: str) -> None:
        self.queues = (f"{name}.in", f"{name}.left", f"{name}.right")
        self.inbox = Book(f"{name}.in")
        self._moving: dict[str, bool] = {}
        self._drained: dict[str, float] = {}
        self.committed = 0

    def committing(self, uid: str) -> None:
        self._moving[uid] = False

    def told(self, uid: str) -> None:
        """The transaction is committed."""
        self._moving[uid] = True
        self.committed += 1

    def check(self, server: Server, killed_at: float) -> list[str]:
        inbox, left, right = (drained(server, queue, acknowledges=queue != self.queues[0]) for queue in self.queues)
        name = self.queues[0]
        back = {uid for uid, at in self._drained.items() if killed_at - at < SETTLED_SECONDS}
        left, right = ([one for one in found if one.uid not in back] for found in (left, right))
        self._drained = {one.uid: time.monotonic() for one in left} | {uid: time.monotonic() for uid in back}
        problems = [f"{name}: {one.uid} is damaged: {one.wrong}" for one in [*left, *right] if one.wrong]
        waiting, at_left, at_right = ({one.uid for one in found} for found in (inbox, left, right))
        if len(left) > len(at_left) or len(right) > len(at_right):
            problems.append(f"{name}: a transaction was done twice")
        problems += [f"{name}: the transaction of {uid} was done by half" for uid in sorted(at_left ^ at_right)]
        problems += [f"{name}: {uid} was moved and is still there" for uid in sorted(waiting & (at_left | at_right))]
        problems += [f"{name}: {uid} was moved by nobody" for uid in sorted(at_left - set(self._moving))]
        for uid, is_committed in self._moving.items():
            if is_committed and uid not in at_left:
                problems.append(f"{name}: the committed transaction of {uid} is LOST")
            if uid in at_left:
                self.inbox.settling(uid)
        self.inbox.entries = {
            uid: entry for uid, entry in self.inbox.entries.items() if not (uid in at_left and uid in at_right)
        }
        problems += self.inbox.check([Found(one.uid, None, one.wrong) for one in inbox], killed_at)
        self._moving.clear()
        return problems


def _properties(uid: str, expires_s: float = 0.0) -> pika.BasicProperties:
    return pika.BasicProperties(
        message_id=uid,
        headers=headers_of(uid),
        app_id="headers",
        priority=priority_of(uid),
        delivery_mode=2,
        expiration=str(int(expires_s * 1000)) if expires_s else None,
    )
