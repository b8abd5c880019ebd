"""Tasks of Celery over Headrace: nothing but the URL is special. Run a worker with `celery -A tasks worker`."""

import os

from celery import Celery

app = Celery("tasks", broker=os.environ.get("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/"), backend="rpc://")
app.conf.task_acks_late = True  # a task whose worker dies is run again


@app.task
def add(x: int, y: int) -> int:
    return x + y
