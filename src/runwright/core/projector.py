"""The projector: snapshots from streams of events, for consumers that hold no state of their own.

Gaps in `runSeq` are normal for a consumer (the stream may be read while it is written). A gap makes
the snapshot STALE and asks for a resync; the resync is done when a re-read reaches the head as it was
when the gap was seen. Unknown event types move the watermark and change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.snapshot import Alert, RunSnapshot
from runwright.contract.timestamps import to_micros
from runwright.contract.transitions import RUN_TRANSITIONS, STEP_TRANSITIONS, InvalidTransition

from .evolve import evolve
from .state import RunState, freeze

LAG_ALERT_MICROS = 5_000_000

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(RunState).decode


def identity_of(source: RunEventRecord | RunSnapshot) -> RunIdentity:
    return RunIdentity(
        run_id=source.run_id,
        tenant_id=source.tenant_id,
        project_id=source.project_id,
        environment_id=source.environment_id,
        plan_id=source.plan_id,
        plan_version=source.plan_version,
    )


class SnapshotProjector:
    """Folds events into snapshots and gathers the alerts that come up on the way.

    Projecting the same events again gives the same snapshot and no second alert.
    """

    def __init__(self) -> None:
        self.alerts: dict[tuple[str, str, str], Alert] = {}

    def project_run(self, run_id: str, events: Sequence[RunEventRecord]) -> RunSnapshot:
        """The snapshot of a run from all of its events, in whatever order they came."""
        ordered = sorted((event for event in events if event.run_id == run_id), key=lambda event: event.run_seq)
        if not ordered:
            raise ValueError(f"no events of run {run_id!r}")
        return self._fold(identity_of(ordered[0]), RunState(detailed=True), ordered)

    def incremental_project(self, snapshot: RunSnapshot, new_events: Sequence[RunEventRecord]) -> RunSnapshot:
        """A new snapshot: the old one plus these events. The old one is not touched.

        At a gap nothing beyond it is applied: the result is the snapshot up to the gap, stale until what
        was seen beyond it has been reached. Project the run anew from a full read, or give the missing events.
        """
        state = _DECODE(snapshot.resume)
        identity = identity_of(snapshot)
        ready: list[RunEventRecord] = []
        last, seen, ready_until_gap = snapshot.last_event_seq, snapshot.stale_until, True
        for event in sorted(new_events, key=lambda event: event.run_seq):
            if event.run_seq <= last or event.run_id != snapshot.run_id:
                continue
            seen = max(seen, event.run_seq)
            if ready_until_gap and self.detect_non_contiguous(last, event.run_seq):
                self._raise_gap(identity, last, event.run_seq)
                ready_until_gap = False
            if ready_until_gap:
                ready.append(event)
                last = event.run_seq
        return self._fold(identity, state, ready, stale_until=seen)

    @staticmethod
    def detect_non_contiguous(last_seq: int, next_seq: int) -> bool:
        return next_seq > last_seq + 1

    @staticmethod
    def resync_done(snapshot: RunSnapshot, head_when_seen: int) -> bool:
        """Whether a re-read has reached the head as it was when the gap was seen."""
        return snapshot.last_event_seq >= head_when_seen

    def observe_lag(self, snapshot: RunSnapshot, next_persisted_at: str | None, now: int) -> int:
        """Microseconds for which an event has waited to be projected; beyond 5 s that is an alert.

        `next_persisted_at` is of the first event that the snapshot does not have yet; None if it has them all.
        """
        if next_persisted_at is None:
            return 0
        lag = now - to_micros(next_persisted_at)
        if lag > LAG_ALERT_MICROS:
            self._keep(
                Alert(
                    code="PROJECTOR_LAG_HIGH",
                    severity="P2",
                    detail=f"The projection of this run is {lag / 1e6:.1f} s behind its log.",
                    run_id=snapshot.run_id,
                    subject=next_persisted_at,
                    facts={"lagMs": lag // 1000, "lastEventSeq": snapshot.last_event_seq},
                )
            )
        return lag

    def _fold(
        self, identity: RunIdentity, state: RunState, events: Sequence[RunEventRecord], *, stale_until: int = 0
    ) -> RunSnapshot:
        for event in events:
            prior = state.summary.status
            invalid = evolve(state, event)
            if invalid is not None:
                self._keep(
                    invalid_transition_alert(
                        identity, invalid, event.event_id, event.run_seq, event.persisted_at, prior, event.step_id
                    )
                )
        snapshot = freeze(identity, state)
        stale = snapshot.last_event_seq < stale_until
        stale_until = stale_until if stale else 0
        return msgspec.structs.replace(snapshot, stale=stale, stale_until=stale_until, resume=_ENCODE(state))

    def _raise_gap(self, identity: RunIdentity, last: int, found: int) -> None:
        self._keep(
            Alert(
                code="PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED",
                severity="P2",
                detail=f"After event {last} came event {found}; the run is re-read.",
                run_id=identity.run_id,
                subject=f"{last}-{found}",
                facts={"lastSeq": last, "nextSeq": found},
            )
        )

    def _keep(self, alert: Alert) -> None:
        self.alerts.setdefault((alert.code, alert.run_id or "", alert.subject), alert)


def invalid_transition_alert(
    run: RunIdentity,
    invalid: InvalidTransition,
    event_id: str,
    run_seq: int,
    persisted_at: str,
    run_status: str,
    step_id: str | None,
) -> Alert:
    """The alert of layer 3: once per run and offending event."""
    return Alert(
        code="INVALID_TRANSITION",
        severity="P2",
        detail=invalid.detail,
        run_id=run.run_id,
        subject=event_id,
        facts={
            "tenantId": run.tenant_id,
            "projectId": run.project_id,
            "environmentId": run.environment_id,
            "eventId": event_id,
            "eventType": invalid.attempted_event_type,
            "stepId": step_id,
            "runSeq": run_seq,
            "persistedAt": persisted_at,
            "runStatus": run_status,
            "priorState": invalid.actual_state,
            "attemptedNextState": next_state(invalid.attempted_event_type),
        },
    )


def next_state(event_type: str) -> str | None:
    """The state that an event of this type leads to, where it leads to one."""
    if event_type in STEP_TRANSITIONS:
        return STEP_TRANSITIONS[event_type][1]
    return RUN_TRANSITIONS[event_type][1] if event_type in RUN_TRANSITIONS else None
