"""What the collector looks through while the broker serves: little, but everything now and then."""

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
kept = [cycle() for _ in range(1000)]
assert things() == 1000
gc.collect()
assert things() == 0, "what survived is set aside"
assert gc.collect() == 0

before = gc.get_freeze_count()
kept.clear()
gc.collect()
assert gc.get_freeze_count() > before - 1000, "what is set aside is not looked at"
garbage = [cycle() for _ in range(1000)]
garbage.clear()
assert gc.collect() >= 1000, "what came since is"

clock.advance(601)
assert gc.collect() >= 1000, "now and then it is looked at"
assert gc.collect() == 0
"""


def test_objects_that_survive_are_set_aside_and_looked_through_now_and_then() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
