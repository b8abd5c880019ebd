"""The dashboard in a real browser: Chromium clicks, types and looks, as a person would.

With HEADRACE_PICTURES=docs in the environment, the pictures for the documents are taken anew.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.paho_helpers import Paho
from tests.servers import Server

_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "chromium is missing: scripts/test installs it"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """A page on which nothing may go wrong, and which may load nothing from elsewhere."""
    context = browser.new_context(base_url=server.http_url, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda sent: None if sent.url.startswith(server.http_url) else wrong.append(sent.url))
    opened.set_default_timeout(15_000)
    yield opened
    context.close()
    assert wrong == []


@pytest.fixture
def inside(page: Page) -> Page:
    """The same after logging in."""
    sign_in(page)
    return page


def sign_in(page: Page, password: str = "guest") -> None:
    page.goto("/")
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")
    if password == "guest":
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def declare(http: httpx.Client, name: str, *payloads: str, **body: object) -> None:
    assert http.put(f"/api/v1/queues/%2F/{name}", json=body).status_code == 201
    for payload in payloads:
        http.post("/api/v1/publish/%2F", json={"routing_key": name, "payload": payload}).raise_for_status()


def test_a_wrong_password_is_told_and_the_right_one_lets_in(page: Page) -> None:
    sign_in(page, "wrong")
    expect(page.get_by_role("alert")).to_contain_text("not the right name and password")

    sign_in(page)
    page.reload()

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Password")).to_be_visible()


def test_the_overview_shows_rates_and_latency_as_they_are(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name, "x")

    expect(inside.get_by_role("img", name=re.compile("Messages per second: published"))).to_be_visible()
    expect(inside.get_by_role("img", name=re.compile("Commit latency"))).to_be_visible()
    tile = inside.locator(".tile").filter(has_text="Published")
    expect(tile).to_contain_text("in all")
    expect(inside.locator("main")).not_to_contain_text(re.compile("null|undefined|NaN"))


def test_delayed_messages_are_shown_apart_and_streams_do_not_wait(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name, "x")
    declare(http, f"{name}-log", "a", "b", "c", type="stream")
    http.post("/api/v1/publish/%2F", json={"routing_key": name, "payload": "y", "deliver_in_ms": 3_600_000})

    inside.goto(f"/#/queues/%2F/{name}")
    expect(inside.locator(".tile").filter(has_text="Waiting")).to_contain_text("1")
    expect(inside.locator(".tile").filter(has_text="Delayed")).to_contain_text("1")
    inside.get_by_role("link", name="Queues").click()
    inside.get_by_label("Search queues by name").fill(name)
    stream = inside.get_by_role("row").filter(has=inside.get_by_role("link", name=f"{name}-log", exact=True))
    expect(stream.locator('[data-label="Waiting"]')).to_have_text("")
    inside.get_by_role("link", name="Overview").click()
    expect(inside.locator(".tile").filter(has_text="Waiting")).to_contain_text("delayed")


def test_a_queue_is_declared_found_and_deleted(inside: Page, name: str) -> None:
    inside.get_by_role("link", name="Queues").click()
    inside.get_by_role("button", name="Declare a queue").click()
    inside.get_by_label("Name", exact=True).fill(name)
    inside.get_by_label("Type").select_option("stream")
    inside.get_by_role("button", name="Declare", exact=True).click()
    inside.get_by_label("Search queues by name").fill(name)
    inside.get_by_role("link", name=name).click()
    expect(inside.get_by_role("heading", name=name)).to_be_visible()

    inside.get_by_role("button", name="Delete").click()
    inside.get_by_role("dialog").get_by_role("button", name="Delete").click()

    inside.get_by_label("Search queues by name").fill(name)
    expect(inside.get_by_text("No queue has that in its name.")).to_be_visible()


def test_messages_are_published_and_browsed_without_being_taken(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name)
    inside.goto(f"/#/queues/%2F/{name}")
    inside.get_by_role("button", name="Publish a message").click()
    inside.get_by_label("Payload", exact=True).fill('{"answer":42}')
    inside.get_by_label("Headers, as JSON").fill('{"trace": "abc"}')
    inside.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(inside.get_by_text("Stored in 1 queue.")).to_be_visible()

    inside.get_by_role("button", name="Browse").click()
    message = inside.locator(".message")
    expect(message.locator("pre")).to_have_text('{\n  "answer": 42\n}')
    message.get_by_text("Properties").click()
    expect(message).to_contain_text("headers.trace")
    inside.get_by_role("button", name="hex").click()
    expect(message.locator("pre")).to_contain_text("7b 22 61 6e 73 77 65 72 22 3a 34 32 7d")

    assert http.get(f"/api/v1/queues/%2F/{name}").json()["counters"]["ready"] == 1


def test_a_payload_from_outside_is_text_and_never_a_page(inside: Page, http: httpx.Client, name: str) -> None:
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    declare(http, name, evil)
    inside.goto(f"/#/queues/%2F/{name}")

    inside.get_by_role("button", name="Browse").click()

    expect(inside.locator(".message pre")).to_have_text(evil)
    assert inside.title() == "Headrace"


def test_a_group_is_paused_resumed_and_sought(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name, "one", "two", type="stream")
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"group": "readers", "limit": 2})
    inside.goto(f"/#/queues/%2F/{name}")
    group = inside.get_by_role("row").filter(has_text="readers")

    group.get_by_role("button", name="Pause").click()
    expect(group).to_contain_text("paused")
    group.get_by_role("button", name="Resume").click()
    expect(group).not_to_contain_text("paused")
    group.get_by_role("button", name="Seek").click()
    expect(inside.get_by_role("dialog")).to_contain_text(f"{name} has 0 messages left to read")
    inside.get_by_label("Position").fill("1")
    inside.get_by_role("dialog").get_by_role("button", name="Seek").click()
    expect(inside.get_by_text("goes on at 1")).to_be_visible()

    assert http.get(f"/api/v1/queues/%2F/{name}/groups/readers").json()["cursor"] == 1


def test_dead_letters_are_looked_at_sent_back_moved_and_purged(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name, "one", "two", "three")
    declare(http, f"{name}-2")
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"limit": 3, "then": "reject"})
    inside.get_by_role("link", name="Dead letters").click()
    grave = inside.get_by_role("row").filter(has=inside.get_by_role("link", name=f"$dlq/{name}", exact=True))

    grave.get_by_role("button", name="Look").click()
    inside.locator(".message").first.get_by_role("button", name="Send back").click()
    expect(inside.get_by_text("is back where it died")).to_be_visible()
    grave.get_by_role("button", name="Move").click()
    inside.get_by_label("To queue").fill(f"{name}-2")
    inside.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(inside.get_by_text(f"2 messages of $dlq/{name} moved to {name}-2.")).to_be_visible()
    assert _ready(http, name) == 1
    assert _ready(http, f"{name}-2") == 2

    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"then": "reject"})
    grave.get_by_role("button", name="Send back").click()
    inside.get_by_role("dialog").get_by_role("button", name="Send back").click()
    expect(inside.get_by_text(f"1 message of $dlq/{name} went back.")).to_be_visible()
    assert _ready(http, name) == 1

    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"then": "reject"})
    grave.get_by_role("button", name="Purge").click()
    expect(inside.get_by_role("dialog")).to_contain_text(f"the 1 message of $dlq/{name}")
    inside.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(inside.get_by_text(f"1 message of $dlq/{name} are gone.")).to_be_visible()
    assert _ready(http, name) == _ready(http, f"$dlq%2F{name}") == 0


def test_dead_letters_behind_an_exchange_are_on_the_page_and_only_they_are_purged(
    inside: Page, http: httpx.Client, name: str
) -> None:
    declare(http, f"{name}-parking", arguments={})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-parking"}
    declare(http, name, "one", "two", arguments=arguments)
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"limit": 2, "then": "reject"})
    http.post("/api/v1/publish/%2F", json={"routing_key": f"{name}-parking", "payload": "not a letter"})
    inside.get_by_role("link", name="Dead letters").click()
    grave = inside.get_by_role("row").filter(has=inside.get_by_role("link", name=f"{name}-parking", exact=True))

    expect(grave).to_contain_text(name)
    grave.get_by_role("button", name="Look").click()
    expect(inside.locator(".message")).to_have_count(2)
    grave.get_by_role("button", name="Purge").click()
    expect(inside.get_by_role("dialog")).to_contain_text(f"the dead letters among the 3 messages of {name}-parking")
    inside.get_by_role("dialog").get_by_role("button", name="Purge").click()

    expect(inside.get_by_text(f"2 messages of {name}-parking are gone.")).to_be_visible()
    assert _ready(http, f"{name}-parking") == 1


def test_dialogs_say_how_many_messages_of_which_queue_are_lost(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name, "one", "two")
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"limit": 1})
    inside.goto(f"/#/queues/%2F/{name}")
    dialog = inside.get_by_role("dialog")

    expect(inside.get_by_role("row").filter(has_text="default")).to_be_visible()
    expect(inside.get_by_role("button", name="Forget")).to_have_count(0)
    for button, text in (
        ("Purge", f"1 message that wait in {name}"),
        ("Delete", f"The queue {name} goes with 1 message"),
        ("Move messages", f"the 1 message that wait in {name}"),
    ):
        inside.get_by_role("button", name=button, exact=True).click()
        expect(dialog).to_contain_text(text)
        dialog.get_by_role("button", name="Cancel").click()


def test_forgetting_a_group_says_what_it_has_not_finished(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name, "one", "two", type="stream")
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"group": "readers", "position": "first", "limit": 1})
    inside.goto(f"/#/queues/%2F/{name}")

    inside.get_by_role("button", name="Forget").click()
    expect(inside.get_by_role("dialog")).to_contain_text(f"The group readers of {name} has not finished 1 message")
    inside.get_by_role("dialog").get_by_role("button", name="Forget").click()

    expect(inside.get_by_text("No group has read this queue yet.")).to_be_visible()


def _ready(http: httpx.Client, name: str) -> int:
    return int(http.get(f"/api/v1/queues/%2F/{name}").json()["counters"]["ready"])


def test_connections_are_shown_by_protocol_and_can_be_ended(inside: Page, server: Server, name: str) -> None:
    connection = server.connect(client_properties={"connection_name": name})
    inside.get_by_role("link", name="Connections").click()
    client = inside.get_by_role("row").filter(has_text=name)
    expect(client).to_contain_text("AMQP 0-9-1")

    client.get_by_role("button", name="End").click()
    inside.get_by_role("dialog").get_by_role("button", name="End").click()

    expect(client).to_have_count(0)
    with pytest.raises(Exception, match="CONNECTION_FORCED"):
        connection.sleep(30)


def test_pipelines_are_shown_with_their_state_and_a_job_is_forgotten(
    inside: Page, http: httpx.Client, name: str
) -> None:
    told = [
        {"name": "hot", "type": "sql", "state": "running", "messages": 1200, "behind": 7},
        {"name": "<b>day</b>", "type": "replay", "state": "failed", "reason": "no <i>queue</i>", "restarts": 3},
    ]
    http.put(f"/api/v1/pipelines/%2F/{name}", json={"pipelines": told}).raise_for_status()
    inside.get_by_role("link", name="Pipelines").click()
    hot = inside.get_by_role("row").filter(has_text="hot").filter(has_text=name)
    failed = inside.get_by_role("row").filter(has_text="<b>day</b>").filter(has_text=name)
    expect(hot).to_contain_text("running")
    expect(hot.locator('[data-label="Messages"]')).to_have_text("1,200")
    expect(hot.locator('[data-label="Behind"]')).to_have_text("7")
    expect(failed).to_contain_text("no <i>queue</i>")

    failed.get_by_role("button", name="Forget the job").click()
    inside.get_by_role("dialog").get_by_role("button", name="Forget", exact=True).click()

    expect(hot).to_have_count(0)


def test_everything_can_be_reached_with_the_keyboard(inside: Page) -> None:
    seen: list[str] = []
    for _ in range(12):
        inside.keyboard.press("Tab")
        seen.append(inside.evaluate("document.activeElement.textContent.trim()"))

    assert {"Overview", "Queues", "Dead letters", "Connections", "Pipelines", "Theme", "Sign out"} <= set(seen)


def test_a_message_is_published_with_the_keyboard_alone(inside: Page, http: httpx.Client, name: str) -> None:
    declare(http, name)
    inside.goto(f"/#/queues/%2F/{name}")
    expect(inside.get_by_role("heading", name=name)).to_be_visible()

    tab_to(inside, "Publish a message")
    inside.keyboard.press("Enter")
    expect(inside.get_by_role("dialog")).to_be_visible()
    inside.keyboard.press("Escape")
    expect(inside.get_by_role("dialog")).to_have_count(0)
    tab_to(inside, "Publish a message")
    inside.keyboard.press("Enter")
    inside.get_by_label("Payload", exact=True).focus()
    inside.keyboard.type("typed")
    tab_to(inside, "Publish")
    inside.keyboard.press("Space")

    expect(inside.get_by_text("Stored in 1 queue.")).to_be_visible()
    assert _ready(http, name) == 1


def tab_to(page: Page, name: str) -> None:
    """Press the key until the button of this name has the focus, and shows it."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"{name} cannot be reached")


def test_light_and_dark_are_a_choice_that_stays(inside: Page) -> None:
    before = inside.evaluate("getComputedStyle(document.body).backgroundColor")
    inside.get_by_role("button", name="Theme").click()
    after = inside.evaluate("getComputedStyle(document.body).backgroundColor")
    inside.reload()

    assert before != after
    assert inside.evaluate("getComputedStyle(document.body).backgroundColor") == after


@pytest.mark.parametrize(
    "where", ["overview", "queues", "dead-letters", "connections", "pipelines", "queues/%2F/phone"]
)
def test_nothing_is_wider_than_a_phone(inside: Page, http: httpx.Client, where: str) -> None:
    if http.get("/api/v1/queues/%2F/phone").status_code == 404:
        declare(http, "phone", "x" * 500)
    inside.set_viewport_size({"width": 375, "height": 800})

    inside.goto(f"/#/{where}")
    expect(inside.locator(".card").first).to_be_visible()

    assert inside.evaluate("document.documentElement.scrollWidth") <= 375
    assert inside.evaluate("nav.scrollWidth <= nav.clientWidth"), "a page is out of reach"


def work(channel: BlockingChannel, method: Basic.Deliver, _: object, __: bytes) -> None:
    """Most messages go well."""
    if method.delivery_tag % 50 == 0:
        channel.basic_reject(method.delivery_tag, requeue=False)
    elif method.delivery_tag % 20 == 0:
        channel.basic_nack(method.delivery_tag)
    else:
        channel.basic_ack(method.delivery_tag)


def test_the_pictures(inside: Page, http: httpx.Client, server: Server, tmp_path: Path) -> None:
    """Believable work for a few seconds, and what the dashboard makes of it: in light, in dark and on a phone."""
    wanted = os.environ.get("HEADRACE_PICTURES", "")
    channel = server.connect(client_properties={"connection_name": "web-shop"}).channel()
    worker = server.connect(client_properties={"connection_name": "billing"}).channel()
    sensors = Paho(server.mqtt_port, "plant-gateway")
    declare(http, "orders", type="classic", retry={"initial_backoff": "100ms"})
    declare(http, "invoices", type="quorum")
    declare(http, "sensor-readings", type="stream")
    worker.basic_qos(prefetch_count=100)
    worker.basic_consume("orders", work, consumer_tag="billing-1")
    inside.goto("/#/overview")
    for step in range(600 if wanted else 20):
        for _ in range(20 + 15 * (step % 30 > 14)):
            channel.basic_publish("", "orders", b'{"item": "espresso", "price": 2.4}')
        for sensor in range(12):
            sensors.publish(f"$queue/sensor-readings/hall-1/{sensor}", b'{"celsius": 21.5}')
        http.post("/api/v1/queues/%2F/sensor-readings/consume", json={"group": "dashboards", "limit": 10})
        http.get("/api/v1/queues/%2F/orders")  # who looks at a queue has samples of its age
        worker.connection.process_data_events(0.05)
        channel.connection.process_data_events(0.05)

    pictures = [_picture(inside, tmp_path / "dashboard.png", 1280, 960)]
    inside.emulate_media(color_scheme="dark")
    inside.goto("/#/queues/%2F/orders")
    expect(inside.get_by_role("heading", name="orders")).to_be_visible()
    pictures.append(_picture(inside, tmp_path / "dashboard-queue.png", 1280, 1180))
    pictures.append(_picture(inside, tmp_path / "dashboard-phone.png", 390, 844))

    sensors.close()
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        if wanted:
            shutil.copy(picture, wanted)


def _picture(page: Page, file: Path, width: int, height: int) -> Path:
    page.set_viewport_size({"width": width, "height": height})
    page.screenshot(path=file)
    return file
