"""Lines for a waiting parent."""

from __future__ import annotations

import json
import os

from inference_node.announce import Announcer


def test_two_lines_and_then_the_descriptor_is_closed():
    read, write = os.pipe()
    announcer = Announcer(write)
    announcer.listening("127.0.0.1:1")
    announcer.ready("127.0.0.1:1", "n", "m", "sim")
    announcer.ready("127.0.0.1:1", "n", "m", "sim")
    with os.fdopen(read) as pipe:
        lines = [json.loads(line) for line in pipe]
    assert [line["event"] for line in lines] == ["listening", "ready"]
    assert lines[1] == {
        "event": "ready",
        "address": "127.0.0.1:1",
        "node_id": "n",
        "model": "m",
        "engine": "sim",
        "pid": os.getpid(),
    }


def test_without_a_descriptor_or_a_listener_it_says_nothing():
    Announcer(-1).ready("a", "n", "m", "e")
    read, write = os.pipe()
    os.close(read)
    Announcer(write).listening("a")
