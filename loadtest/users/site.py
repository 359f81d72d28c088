"""Ties a load to locust's events: options, checks before the first call, the load of each process, what is shown."""

from __future__ import annotations

import logging
import os
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.event import Events
from locust.runners import MasterRunner, WorkerRunner

from loadtest.sim.mooncake import BadTrace
from loadtest.users import options, panel
from loadtest.users.load import Load, trace_of
from loadtest.users.locust_shapes import install
from loadtest.users.people import Person
from loadtest.users.scenarios import BadMix, Mix
from loadtest.users.target import Served, Target, TargetError, look, takes_schema, target

BAD, DOWN = 2, 3
"""Exit codes: options that cannot be used, and a target that cannot be."""
_END, _ENDED, _OVER = "laya_end", "laya_ended", "laya_over"
_GRACE = 5.0
"""Seconds beyond --stop-timeout in which a worker has said its last."""
REFUSALS = (TargetError, BadMix, BadTrace, ValueError, OSError)
_log = logging.getLogger("laya")


class TargetDown(TargetError):
    """The target may be asked, and cannot be."""


class Site:
    """The listeners of one locust process. ``people`` is the class whose users share the load."""

    def __init__(self, people: type[Person]) -> None:
        self._people = people
        self._ended = self._overs = 0

    def listen(self, events: Events) -> None:
        """Be told of everything that matters."""
        events.init_command_line_parser.add_listener(self.add_options)  # type: ignore[no-untyped-call]
        events.init.add_listener(self.prepare)  # type: ignore[no-untyped-call]
        events.test_start.add_listener(self.begin)  # type: ignore[no-untyped-call]
        events.test_stopping.add_listener(self.let_end)  # type: ignore[no-untyped-call]
        events.test_stop.add_listener(self.end)  # type: ignore[no-untyped-call]
        events.quitting.add_listener(self.say)  # type: ignore[no-untyped-call]

    def add_options(self, parser: ArgumentParser, **_: object) -> None:
        """Ours, beside locust's."""
        options.add(parser)

    def prepare(self, environment: Environment, web_ui: Any, **more: object) -> None:
        """Before anything starts: what can be refused is refused, so that a mistake costs nobody a minute."""
        args: Any = environment.parsed_options
        install(environment, args.shape)
        runner: Any = environment.runner
        if isinstance(runner, WorkerRunner):
            runner.register_message(_END, self._end_here, concurrent=True)
        elif isinstance(runner, MasterRunner):
            runner.register_message(_ENDED, self._ended_there)
            runner.register_message(_OVER, self._over_there)
        if web_ui is not None:
            panel.extend(web_ui, environment.stats)
        at_once = args.headless or args.autostart
        if at_once and not isinstance(environment.runner, WorkerRunner):
            try:
                asked, _, served = checked(environment)
                if asked.trace:
                    trace_of(asked, served)
            except REFUSALS as error:
                print(f"loadtest: {error}", file=sys.stderr)
                _send_home(runner, args)
                sys.exit(DOWN if isinstance(error, TargetDown) else BAD)

    def begin(self, environment: Environment, **_: object) -> None:
        """A test begins: where users run, the load is made that they share."""
        runner: Any = environment.runner
        args: Any = environment.parsed_options
        if isinstance(runner, MasterRunner):
            self._overs = 0
            args.laya_workers = runner.worker_count  # goes to the workers with the other options
            if args.trace and (args.num_users or 1) < runner.worker_count:
                few = f"--users: {runner.worker_count} workers share the trace and each needs a user"
                self._refused(environment, BadMix(few))
            return
        part, parts = 0, 1
        if isinstance(runner, WorkerRunner):
            part, parts = runner.worker_index, max(1, int(getattr(args, "laya_workers", 1)))
        try:
            asked, at, served = checked(environment)
            fire = environment.events.request.fire
            load = Load(asked, at, served, environment.stats, fire, part, parts, lambda: self._over(environment))
        except REFUSALS as error:
            self._refused(environment, error)
            return
        for note in load.notes if part == 0 else ():
            _log.warning("%s", note)
        _log.info("asking %s for %s, part %d of %d", at.address, served.model, part + 1, parts)
        self._people.load = load

    def _refused(self, environment: Environment, error: Exception) -> None:
        """It is an exception of locust's, which the page, the files and the exit code show, from a worker too."""
        runner: Any = environment.runner
        args: Any = environment.parsed_options
        _log.error("%s", error)
        if isinstance(runner, WorkerRunner):
            runner.send_message("exception", {"msg": str(error), "traceback": ""})
            return
        runner.log_exception("local", str(error), "")
        if args.headless:
            environment.process_exit_code = DOWN if isinstance(error, TargetDown) else BAD
        gevent.spawn_later(0, runner.quit if args.headless else runner.stop)

    def _over(self, environment: Environment) -> None:
        """A trace is over: so is the test, once that holds for every worker."""
        runner: Any = environment.runner
        args: Any = environment.parsed_options
        if isinstance(runner, WorkerRunner):
            runner.send_message(_OVER)
            return
        _log.info("the trace is over")
        gevent.spawn_later(0, runner.quit if args.headless else runner.stop)

    def _over_there(self, environment: Environment, **_: object) -> None:
        args: Any = environment.parsed_options
        self._overs += 1
        if self._overs == args.laya_workers:
            self._over(environment)

    def let_end(self, environment: Environment, **_: object) -> None:
        """Without a web page locust's master waits half a second for its workers: give calls their --stop-timeout."""
        runner: Any = environment.runner
        args: Any = environment.parsed_options
        if not isinstance(runner, MasterRunner) or not environment.stop_timeout or not args.headless:
            return
        waiting = len(runner.clients.all)
        self._ended = 0
        runner.send_message(_END)
        limit = time.monotonic() + environment.stop_timeout + _GRACE
        while self._ended < waiting and time.monotonic() < limit:
            gevent.sleep(0.05)

    def _end_here(self, environment: Environment, **_: object) -> None:
        runner: Any = environment.runner
        runner.stop()
        runner._send_stats()  # what the users saw last
        runner.send_message(_ENDED)

    def _ended_there(self, **_: object) -> None:
        self._ended += 1

    def end(self, environment: Environment, **_: object) -> None:
        """A test has ended: the load goes, and its figures are written."""
        load, self._people.load = self._people.load, None
        if load is not None:
            load.close()
        prefix = getattr(environment.parsed_options, "csv_prefix", None)
        if prefix and not isinstance(environment.runner, WorkerRunner):
            Path(f"{prefix}_laya.csv").write_text(panel.to_csv(environment.stats))
            Path(f"{prefix}_laya_rejects.csv").write_text(panel.rejects_csv(environment.stats))

    def say(self, environment: Environment, **_: object) -> None:
        """locust ends: the figures once more, on the terminal."""
        if not isinstance(environment.runner, WorkerRunner) and environment.stats.entries:
            print(panel.text(environment.stats), file=sys.stderr)


def checked(environment: Environment) -> tuple[options.Options, Target, Served]:
    """The options, whom to ask, and what it serves. Raises one of REFUSALS."""
    args: Any = environment.parsed_options
    asked = options.read(args)
    Mix(asked.scenarios, asked.priorities)
    at = target(environment.host or "", asked.owned)
    key = asked.keys[0] if asked.keys else ""
    try:
        served = look(at, asked.model, key, ca_file=asked.ca_file)
    except TargetError as error:
        raise TargetDown(str(error)) from None
    schema = asked.structured == "on"
    if asked.structured == "auto" and "extract" in asked.scenarios and not asked.trace:
        schema = takes_schema(at, served.model, key, ca_file=asked.ca_file)
    return options.read(args, served.context, schema), at, served


def _send_home(runner: Any, args: Any) -> None:
    """Workers that --processes has forked would look for their master for a minute: tell them that it is over."""
    if not isinstance(runner, MasterRunner) or not args.processes:
        return
    count = args.processes if args.processes > 0 else os.cpu_count() or 1
    limit = time.monotonic() + _GRACE
    while len(runner.clients.ready) < count and time.monotonic() < limit:
        gevent.sleep(0.05)
    runner.quit()
