"""``run.transaction``: a function's writes and its step's completion in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import clock, errors, faults, run_context, run_usage, store_index, store_sql, store_steps
from .models import StepEvent
from .run_attempt import fail_flow, store_result
from .run_context import StepContext
from .run_core import RunCore
from .run_effects import Do, Flow, Outcome, Raised, Read
from .run_options import StepSpec
from .store_claim import Claim
from .store_steps import Attempt

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


def checked(core: RunCore, key: object, fn: Callable[[Connection], Any], engine: Engine | None) -> StepSpec:
    """The step that ``transaction`` is.

    Raises:
        TypeError: ``engine`` is no SQLAlchemy engine.
    """
    spec = StepSpec(core.key_for(key, repeat=False), fn)
    spec.check()
    if engine is None:
        spec.how = attempt_here
    else:
        if not hasattr(engine, "begin") or not hasattr(engine, "dialect") or hasattr(engine, "sync_engine"):
            raise TypeError(f"engine is a SQLAlchemy Engine (not an AsyncEngine), not a {type(engine).__name__}")
        spec.how = lambda core, spec, claim: attempt_elsewhere(core, spec, claim, engine)
    return spec


def _begin(core: RunCore, spec: StepSpec, claim: Claim) -> tuple[Attempt, StepContext]:
    if core.tells:
        core.tell(StepEvent("start", core.run_id, spec.key))
    spec.attempt = claim.attempt
    faults.at("in-function")
    attempt = Attempt(spec.key, claim.step, claim.attempt, core.owner.token)
    return attempt, StepContext(core.run_id, spec.key, claim.attempt)


# -- on the run's own database ---------------------------------------------------------------------------------------


def attempt_here(core: RunCore, spec: StepSpec, claim: Claim) -> Flow:
    """One attempt on the run's own database: everything in the store's write transaction."""
    attempt, context = _begin(core, spec, claim)
    started = clock.monotonic()
    outcome: Outcome
    try:
        outcome = yield Do(_in_our_transaction, (core, spec, context, attempt), long=True)
    except GeneratorExit:
        raise
    except BaseException as interrupt:  # noqa: BLE001 - around the commit
        outcome = Outcome(error=interrupt)
    ms = round((clock.monotonic() - started) * 1000)
    if outcome.error is None:
        encoded, fresh = outcome.value
        core.remember(spec, claim, encoded)
        if core.tells:
            core.tell_result("done", spec.key, lambda: core.decode(spec.key, encoded.format, encoded.text), ms)
        return fresh
    if not isinstance(outcome.error, Exception) and (yield Read(store_steps.is_completed, (attempt,))):
        return Raised(outcome.error)  # interrupted after its commit
    return (yield from fail_flow(core, spec, claim, attempt, outcome.error, ms))


def _in_our_transaction(core: RunCore, spec: StepSpec, context: StepContext, attempt: Attempt) -> Outcome:
    from . import store_transaction

    limit = store_transaction.TRANSACTION_LIMIT

    def refusal(expired: bool) -> BaseException:
        if expired:
            return errors.StepTimeout(
                core.run_id, spec.key, limit, hint="do the slow part before, in a step of its own"
            )
        return errors.InvalidTransition(
            core.run_id, status=f"past the transaction of step {spec.key!r}", action="use its connection",
            hint="it ended with the function, or by a statement or an error that rolls back (an error of SQL that is "
            "caught wants connection.rollback()); a statement that would end it is refused",
        )  # fmt: skip

    database = core.store.database
    started = clock.monotonic()
    try:
        # Lost or taken over since the claim: known before the function is called.
        with database.held(store_sql.look, core.where) as tx:
            with store_transaction.lend(tx, refusal, limit, database) as connection:
                value = _call(spec, context, database, connection)
                encoded, fresh = core.codec.settle(value, key=spec.key, returns=spec.returns, hint=spec.fn)
            faults.at("after-return")
            ms = round((clock.monotonic() - started) * 1000)
            meta = core.meta_text(spec.key, run_usage.merged(value, spec.meta))
            with database.translation.of_ours():
                store_steps.complete(tx, core.where, attempt, encoded, ms, meta)
    except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
        return Outcome(error=error)
    return Outcome((encoded, fresh))


def _call(spec: StepSpec, context: StepContext, database: object, connection: Connection) -> Any:
    # What was there is put back, rather than reset by its token: Ctrl-C may come in before that is had.
    active, lent = run_context.active.get(), run_context.lent.get()
    try:
        run_context.active.set(context)
        run_context.lent.set(database)
        return spec.fn(connection)
    finally:
        run_context.lent.set(lent)
        run_context.active.set(active)


# -- in a database of the user's own ---------------------------------------------------------------------------------


def attempt_elsewhere(core: RunCore, spec: StepSpec, claim: Claim, engine: Engine) -> Flow:
    """One attempt in another database: first committed there, with its completion, then told to the run's store."""
    attempt, context = _begin(core, spec, claim)
    started = clock.monotonic()
    outcome: Outcome
    try:
        outcome = yield Do(_in_their_transaction, (core, spec, context, engine), long=True)
    except GeneratorExit:
        raise
    except BaseException as interrupt:  # noqa: BLE001 - around the commit there
        outcome = Outcome(error=interrupt)
    ms = round((clock.monotonic() - started) * 1000)
    faults.at("after-return")
    if outcome.error is not None:
        return (yield from fail_flow(core, spec, claim, attempt, outcome.error, ms))
    encoded, fresh = outcome.value
    return (yield from store_result(core, spec, claim, attempt, encoded, fresh, ms, fresh))


def _in_their_transaction(core: RunCore, spec: StepSpec, context: StepContext, engine: Engine) -> Outcome:
    from . import store_transaction_elsewhere

    assert core.row is not None  # the run was entered before its step was claimed
    completion = store_transaction_elsewhere.Completion(core.run_id, core.row.created_at, spec.key, context.attempt)

    def call(connection: Connection) -> tuple[Any, Any]:
        value = _call(spec, context, None, connection)
        return core.codec.settle(value, key=spec.key, returns=spec.returns, hint=spec.fn)

    def acknowledged(attempt: int) -> bool:
        return core.store.database.read(store_index.was_done, core.where.seq, spec.key, attempt)

    def refusal(action: str) -> BaseException:
        return errors.InvalidTransition(
            core.run_id, status="inside run.transaction", action=f"{action} its transaction",
            hint="return from the function to commit, or raise to roll back",
        )  # fmt: skip

    try:
        made = store_transaction_elsewhere.complete_elsewhere(engine, completion, call, acknowledged, refusal)
    except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
        return Outcome(error=error)
    if isinstance(made, tuple):
        return Outcome(made)
    return Outcome((made, core.decode(spec.key, made.format, made.text, spec.returns, spec.fn)))
