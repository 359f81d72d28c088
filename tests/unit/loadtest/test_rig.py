"""What a rig ends: the servers it has started, with their workers, however it ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from loadtest.rig import ROOT, Rig, free_port, workers_of
from tests.support.alive import alive
from tests.support.ports import within

LIMIT = 20.0

# Listens, has two workers that outlive it when it is killed, and ends them when it is told to end.
MASTER = """
import os, signal, socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
workers = []
def end(*_):
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
for _ in range(2):
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    workers.append(pid)
while True:
    time.sleep(1)
"""

PARENT = """
import sys
from loadtest.rig import Rig, free_port, workers_of
with Rig() as rig:
    port = free_port()
    pid = rig.spawn([sys.executable, sys.argv[1], str(port)], port)
    print(*workers_of(pid, 2), flush=True)
    sys.stdin.read()
"""


def test_a_killed_server_takes_its_workers_along(tmp_path: Path) -> None:
    script = tmp_path / "master.py"
    script.write_text(MASTER)
    with Rig() as rig:
        port = free_port()
        pid = rig.spawn([sys.executable, str(script), str(port)], port)
        workers = workers_of(pid, 2)
        rig.kill(pid)
        within(LIMIT, lambda: not any(alive(worker) for worker in workers), "the workers are gone")


def test_servers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "master.py"
    script.write_text(MASTER)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(script)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2 and all(alive(worker) for worker in workers)
        parent.send_signal(signal.SIGKILL)
        within(LIMIT, lambda: not any(alive(worker) for worker in workers), "the workers are gone")
