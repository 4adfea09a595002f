"""Carries out the aggregator's effects: answers to requests that wait, and the work of a round that is ready."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from time import perf_counter

from common.errors import ProtocolError, RankdadError, RunFailedError, UserError, one_line
from remote.aggregator import Aggregator
from remote.audit import Audit
from remote.progress import AGGREGATOR
from remote.rounds import Answer, Effect, Ready
from remote.web import Connection

LOG = logging.getLogger("rankdad")
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds between two tries to aggregate a round
QUIET = 60.0  # seconds in which the traceback of one place is not logged again
HOLD = 25.0  # seconds for which a request is held: proxies cut what stands idle for 30 or 60


class Host:
    """Between the routes and the run.

    The work runs in the event loop. A thread for it would take half a millisecond a step to hand over to and fro, and
    there is nobody to keep responsive in the meantime: while a round is aggregated, every site waits for it.

    Args:
        aggregator: the run.
        audit: log of who comes and goes.
    """

    def __init__(self, aggregator: Aggregator, audit: Audit) -> None:
        self.aggregator, self.audit = aggregator, audit
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self.crashed = False  # by an error of its own, after which only another process can go on
        self._told = asyncio.Event()  # everyone knows how the run ended
        self._heard = asyncio.Event()  # a site has sent something
        self._untold = set(aggregator.plan.sites)
        self._departed: set[str] = set()
        self._present: set[str] = set()  # have contributed since they came
        self._problems: dict[str, str] = {}  # of sites, as last logged
        self._waiting: dict[str, list[asyncio.Future[bytes | None]]] = {}
        self._leaving = False
        self._logged: dict[str, float] = {}  # when, by the place in the code
        self._again: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def meet(self, site: str) -> None:
        """Take note that a site has come."""
        self._departed.discard(site)

    async def contribute(self, site: str, body: bytes, connection: Connection) -> bytes | None:
        """Take a contribution, and return its round's update; None if that takes longer than `HOLD`.

        Raises:
            ProtocolError: it has to be refused; nothing has changed then.
        """
        self._heard.set()
        if self.crashed:
            raise ProtocolError(500, "the aggregator has to be started again")
        effects = self._receive(site, body)
        round_ = self.aggregator.barrier.round
        problem, holds = self._has_problem(site, connection), self.aggregator.barrier.holds(site)
        if not problem and site not in self._present and (round_ or holds):
            self._present.add(site)
            what = "returned" if round_ else "accepted hello"
            self.audit.note(what, address=connection.address, site=site, round=round_)
        match effects:
            case [Answer(sites=(receiver,), body=said)] if receiver == site:  # of a round before: not for other waits
                self._look_whether_ended()
                return self._saying(site, said)
        return await self.wait(site, connection, effects)

    def _has_problem(self, site: str, connection: Connection) -> bool:
        """Tell whether a site has said that it cannot take part, and log a new reason."""
        problem = self.aggregator.recorder.progress.problems.get(site, "")
        if problem and problem != self._problems.get(site):
            self.audit.note("cannot take part", address=connection.address, site=site, reason=problem)
            self._present.discard(site)
        self._problems[site] = problem
        return bool(problem)

    async def wait(self, site: str, connection: Connection, effects: list[Effect] | None = None) -> bytes | None:
        """Return the update of the round in which a site has contributed; None if that takes longer than `HOLD`.

        Args:
            site: whose contribution is there.
            connection: on which it waits.
            effects: carried out once it waits.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | None] = loop.create_future()
        self._waiting.setdefault(site, []).append(answer)
        connection.waiting = answer
        timer = loop.call_later(0 if self._leaving else HOLD, _answer, answer, None)
        try:
            self.carry_out(effects or [])
            return self._saying(site, await answer)
        finally:
            timer.cancel()
            connection.waiting = None
            waiting = self._waiting[site]
            waiting.remove(answer)
            if not waiting:
                del self._waiting[site]

    def told(self, site: str, said: bytes) -> bytes:
        """Take note of an answer that a site is given, and return it.

        A site that hears of a failure needs no more; one that hears of the end says so when it has saved its model.
        """
        if self.aggregator.barrier.failed and self.aggregator.is_last_word(said):
            self.discount(site)
        return said

    def _saying(self, site: str, said: bytes | None) -> bytes | None:
        return None if said is None else self.told(site, said)

    def _receive(self, site: str, body: bytes) -> list[Effect]:
        """Give a contribution to the aggregator; a ledger that cannot be written ends the run, for now."""
        try:
            return self.aggregator.receive(site, body)
        except UserError as error:
            self.error = error
            return self.aggregator.fail(AGGREGATOR, str(error))

    def carry_out(self, effects: list[Effect]) -> None:
        """Answer those who wait, and start the work of a round that is ready."""
        for effect in effects:
            if isinstance(effect, Answer):
                for site in effect.sites:
                    for answer in self._waiting.get(site, ()):
                        _answer(answer, effect.body)
                self._look_whether_ended()
            else:
                self._start(effect, FIRST_DELAY)

    def _start(self, ready: Ready, delay: float) -> None:
        task = asyncio.create_task(self._aggregate(ready, delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tick(self) -> None:
        """Do what is due by now: to be called several times a second."""
        self._act(self.aggregator.tick)

    def depart(self, site: str, reason: str) -> None:
        """Take note that a site's process has died; it may come back, but the run's end does not wait for it."""
        self.audit.note("departed", site=site, reason=reason)
        self._departed.add(site)
        self._present.discard(site)
        self._act(lambda: self.aggregator.depart(site, reason))
        self._look_whether_ended()

    def _act(self, work: Callable[[], list[Effect]]) -> None:
        """Let the aggregator do something of its own accord."""
        try:
            effects = work()
        except Exception as error:
            self.note_fault(error)
        else:
            self.carry_out(effects)

    async def _aggregate(self, ready: Ready, delay: float) -> None:
        """Complete a round. Nothing has changed if its update cannot be made: that is tried again, later and later."""
        began = perf_counter()
        if self.aggregator.ended:
            return
        try:
            update = self.aggregator.aggregate(ready)
        except RunFailedError as error:
            self.carry_out(self.aggregator.fail(error.site, error.reason))
            return
        except Exception as error:
            refusal = self.note_fault(error)
            for waiting in self._waiting.values():
                for answer in waiting:
                    _refuse(answer, refusal)
            if not self._leaving:
                longer = min(2 * delay, LONGEST_DELAY)
                self._again = asyncio.get_running_loop().call_later(delay, self._start, ready, longer)
            return
        try:
            seconds = perf_counter() - began
            self.carry_out(self.aggregator.complete(ready, update))
            await asyncio.sleep(0)  # the answers leave before the aggregator applies the update itself
            self.aggregator.follow(ready, update, seconds)
        except UserError as error:
            self.error = error
            self.carry_out(self.aggregator.fail(AGGREGATOR, str(error)))
        except Exception as error:
            self._crash(error)
        else:
            self.aggregator.note_problem(AGGREGATOR, "")

    def note_fault(self, error: Exception) -> ProtocolError:
        """Take note of an error of the aggregator's own; return how a request that met it is refused."""
        place = "{0.filename}:{0.lineno}".format(traceback.extract_tb(error.__traceback__)[-1])
        now, known = perf_counter(), self._logged.get(place)
        if known is None or now - known > QUIET:
            self._logged[place] = now
            LOG.error("an error of the aggregator's own", exc_info=error)
            self.audit.note("internal error", reason=one_line(error), place=place)
        self.aggregator.note_problem(AGGREGATOR, one_line(error))
        return ProtocolError(500, f"an error of the aggregator's own ({type(error).__name__}): its log says more")

    def _crash(self, error: Exception) -> None:
        """End this process where the run is half way from one round to the next: the ledger has all to go on from."""
        self.note_fault(error)
        reason = f"an error of the aggregator's own: {one_line(error)}"
        self.error = RankdadError(reason)
        if self.aggregator.keeps_ledger:
            self.error = RankdadError(f"{reason}; the ledger has all, and the same command goes on with the run")
            self.crashed = True
            self.ended.set()
        else:
            self.carry_out(self.aggregator.fail(AGGREGATOR, reason))

    def discount(self, *sites: str) -> None:
        """Take note that some sites know the end of the run, or never will."""
        self._untold -= set(sites)
        self._look_whether_ended()

    def _look_whether_ended(self) -> None:
        if self.aggregator.ended:
            self.ended.set()
            if not self._untold - self._departed:
                self._told.set()

    async def tell_all(self, seconds: float) -> None:
        """Wait until every site has been answered with the end of the run, or none has been heard of for so long.

        Some may still be computing, or go through the whole run again after a crash.
        """
        while not self._told.is_set():
            self._heard.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._told, self._heard)]
            done, rest = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in rest:
                wait.cancel()
            if not done:
                return

    async def leave(self) -> None:
        """Finish the round in hand; then nobody is held any more, and all come again when the run goes on."""
        self._leaving = True
        await self._finish()
        for waiting in self._waiting.values():
            for answer in waiting:
                _answer(answer, None)

    async def close(self) -> None:
        """Let the work in hand end, and write down how the run ended."""
        await self._finish()
        try:
            self.aggregator.close()
        except UserError as error:
            self.error = self.error or error

    async def _finish(self) -> None:
        if self._again is not None:
            self._again.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _answer(waiting: asyncio.Future[bytes | None], body: bytes | None) -> None:
    if not waiting.done():
        waiting.set_result(body)


def _refuse(waiting: asyncio.Future[bytes | None], refusal: ProtocolError) -> None:
    if not waiting.done():
        waiting.set_exception(refusal)
