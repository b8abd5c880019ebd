"""Garbage collection while the broker serves: a little, and everything now and then."""

import subprocess
import sys

PROGRAM = """
import gc
from headrace.clock import ManualClock
from headrace.process import settle_memory

class Thing:
    pass

def cycle():
    thing = Thing()
    thing.itself = thing
    return thing

def things():
    return sum(isinstance(each, Thing) for each in gc.get_objects(0) + gc.get_objects(1) + gc.get_objects(2))

clock = ManualClock()
settle_memory(clock)
settle_memory(clock)
few = [cycle() for _ in range(1000)]
gc.collect()
assert things() == 1000, "few that survive are looked at again"
few.clear()
assert gc.collect() >= 1000

kept = [cycle() for _ in range(30_000)]
gc.collect()
assert things() == 0, "many that survive are set aside"
assert gc.collect() == 0
before = gc.get_freeze_count()
kept.clear()
gc.collect()
clock.advance(3000)
gc.collect()
assert gc.get_freeze_count() > before - 1000, "what is set aside is not looked at"
garbage = [cycle() for _ in range(1000)]
garbage.clear()
assert gc.collect() >= 1000, "what came since is"

kept = [cycle() for _ in range(2 * before + 500_000)]
gc.collect()
kept.clear()
assert gc.collect() <= 20_000, "of many only the last are not set aside"
clock.advance(3601)
assert gc.collect() >= 530_000, "when there are far more, everything is looked at"
assert gc.collect() == 0
"""


def test_objects_that_survive_are_set_aside_and_looked_at_when_there_are_far_more() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


GROWING = """
import gc, sys
from headrace.clock import ManualClock
from headrace.process import settle_memory

settle_memory(ManualClock())
largest = 0

def note(phase, info):
    global largest
    if phase == "start" and info["generation"] == 2:
        largest = max(largest, sum(len(gc.get_objects(each)) for each in range(3)))

gc.callbacks.append(note)
kept = [[each] for each in range(1_000_000)]
assert 0 < largest < 100_000, largest
"""


def test_no_collection_looks_at_more_than_some_objects_however_many_there_are() -> None:
    subprocess.run([sys.executable, "-c", GROWING], check=True, timeout=60)


BLOCKS = """
import sys
from pathlib import Path
from headrace.process import bound_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def make(size):
    blocks, pins = [], []
    for _ in range(64):
        blocks.append(bytearray(size))
        pins.append(bytearray(1000))
    return pins

if "bound" in sys.argv:
    bound_heap()
before = resident()
kept = [make(1 << 20), make(900 << 10), make(1000 << 10)]
print((resident() - before) >> 20)
"""


def _left_mib(*words: str) -> int:
    """Memory that a process keeps of large blocks that are free, between small ones that are not."""
    ended = subprocess.run([sys.executable, "-c", BLOCKS, *words], capture_output=True, text=True, check=True)
    return int(ended.stdout)


def test_large_blocks_that_are_free_leave_the_process() -> None:
    assert _left_mib("bound") <= 4
