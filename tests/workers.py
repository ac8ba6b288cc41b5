"""`pytest --workers N`: the tests are collected once, and their files shared out among forks.

What all files import takes nine seconds of a core; interpreters of their own would spend them each.
A fork takes the next file from a pipe until there is none, and is an ordinary pytest else: what a
test reports goes to the process that collected, which prints and counts it.
"""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterator
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

NUMBER = struct.Struct("H")  # of a file, as it stands in the pipe
OF_ONE_PROCESS = ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin")


class Workers:
    """In the process that collects: its forks, and the pipe that each of them reads from."""

    def __init__(self) -> None:
        self._files = os.pipe()
        self._forks: dict[Connection, int] = {}  # process, by what it reports through
        self._newest: dict[Connection, str] = {}  # test that it reported

    def fork(self, session: pytest.Session, count: int) -> bool:
        """Whether this is still the process that collected; a fork has a plugin of its own."""
        files = len(_by_file(session))
        os.write(self._files[1], b"".join(map(NUMBER.pack, range(files))))
        os.close(self._files[1])
        for _ in range(min(count, files)):
            reports, told = Pipe(duplex=False)
            child = os.fork()
            if not child:
                for other in self._forks:
                    other.close()
                session.config.pluginmanager.unregister(self)
                session.config.pluginmanager.register(Worker(session, self._files[0], told))
                return False
            told.close()
            self._forks[reports] = child
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if not self._forks:
            return None
        while self._forks:
            for reports in wait(self._forks):
                assert isinstance(reports, Connection)
                self._take(session, reports)
            if session.shouldfail:
                os.read(self._files[0], 1 << 16)  # no more files
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    def _take(self, session: pytest.Session, reports: Connection) -> None:
        hook = session.config.hook
        try:
            kind, told = reports.recv()
        except EOFError:
            kind, told = "ended", {}
        if kind == "report":
            self._newest[reports] = told["nodeid"]
            report = hook.pytest_report_from_serializable(config=session.config, data=told)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=told)
        else:
            _, status = os.waitpid(self._forks.pop(reports), 0)
            if os.WIFSIGNALED(status):
                newest = self._newest.get(reports, "its start")
                session.shouldfail = f"signal {os.WTERMSIG(status)} ended a worker after {newest}"


class Worker:
    """In a fork."""

    def __init__(self, session: pytest.Session, files: int, told: Connection) -> None:
        self._files, self._told, self._config = files, told, session.config
        plugins = session.config.pluginmanager
        for name in OF_ONE_PROCESS:
            plugins.unregister(name=name)
        capture: Any = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()  # into files that all forks would share
        capture.start_global_capturing()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = self._items(_by_file(session))
        item = next(items, None)
        while item is not None and not session.shouldfail:
            following = next(items, None)
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        return True

    def _items(self, files: list[list[pytest.Item]]) -> Iterator[pytest.Item]:
        while number := os.read(self._files, NUMBER.size):
            yield from files[NUMBER.unpack(number)[0]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        told = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._told.send(("report", told))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """As text, since not every warning can travel; those of collecting are known."""
        at = warning_message
        said = UserWarning(f"{at.category.__name__}: {at.message}")
        again = warnings.WarningMessage(said, UserWarning, at.filename, at.lineno)
        told = {"warning_message": again, "when": when, "nodeid": nodeid, "location": location}
        if when == "runtest":
            self._told.send(("warning", told))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._told.send(("ended", {}))


def _by_file(session: pytest.Session) -> list[list[pytest.Item]]:
    return [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
