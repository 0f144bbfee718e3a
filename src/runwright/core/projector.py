"""Snapshots from streams of events, for external consumers that have no state of their own.

Gaps in `runSeq` are normal for a consumer, because the stream may be read while it is written. A gap makes the snapshot
STALE and requires a resync; the resync is done when a re-read reaches the head as it was when the gap was detected.
Unknown event types advance the watermark and change nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.snapshot import Alert, RunSnapshot
from runwright.contract.timestamps import to_micros
from runwright.contract.transitions import RUN_TRANSITIONS, STEP_TRANSITIONS, InvalidTransition
from runwright.core.fold.evolve import evolve
from runwright.core.fold.run_state import RunState, freeze

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
    """Fold events into snapshots and collect the alerts that this raises.

    Idempotent: projecting the same events again gives the same snapshot and no second alert.
    """

    def __init__(self) -> None:
        self.alerts: dict[tuple[str, str, str], Alert] = {}

    def project_run(self, run_id: str, events: Sequence[RunEventRecord]) -> RunSnapshot:
        """Create the snapshot of a run from all of its events, in any order."""
        ordered = sorted((event for event in events if event.run_id == run_id), key=lambda event: event.run_seq)
        if not ordered:
            raise ValueError(f"Run {run_id!r} not found in the events.")
        return self._fold(identity_of(ordered[0]), RunState(detailed=True), ordered)

    def incremental_project(self, snapshot: RunSnapshot, new_events: Sequence[RunEventRecord]) -> RunSnapshot:
        """Create a snapshot from an older one, which is not modified, and further events.

        Events beyond a gap are not applied: the result is the snapshot up to the gap, and it is stale until the events
        beyond the gap have been projected. Project the run again from a full read, or pass the missing events.
        """
        state = _DECODE(snapshot.resume)
        identity = identity_of(snapshot)
        contiguous: list[RunEventRecord] = []
        last, newest, has_gap = snapshot.last_event_seq, snapshot.stale_until, False
        for event in sorted(new_events, key=lambda event: event.run_seq):
            if event.run_seq <= last or event.run_id != snapshot.run_id:
                continue
            newest = max(newest, event.run_seq)
            if not has_gap and self.detect_non_contiguous(last, event.run_seq):
                self._add_gap_alert(identity, last, event.run_seq)
                has_gap = True
            if not has_gap:
                contiguous.append(event)
                last = event.run_seq
        return self._fold(identity, state, contiguous, stale_until=newest)

    @staticmethod
    def detect_non_contiguous(last_seq: int, next_seq: int) -> bool:
        return next_seq > last_seq + 1

    @staticmethod
    def resync_done(snapshot: RunSnapshot, head_when_seen: int) -> bool:
        """Return whether a re-read has reached the head as it was when the gap was detected."""
        return snapshot.last_event_seq >= head_when_seen

    def observe_lag(self, snapshot: RunSnapshot, next_persisted_at: str | None, now: int) -> int:
        """Return for how many microseconds an event has waited to be projected; more than 5 s raises an alert.

        `next_persisted_at` is the time of the first event that is not in the snapshot; None if all events are in it.
        """
        if next_persisted_at is None:
            return 0
        lag = now - to_micros(next_persisted_at)
        if lag > LAG_ALERT_MICROS:
            self._add_alert(
                Alert(
                    code="PROJECTOR_LAG_HIGH",
                    severity="P2",
                    detail=f"The projection of this run lags {lag / 1e6:.1f} s behind its log.",
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
            prior_status = state.summary.status
            invalid = evolve(state, event)
            if invalid is not None:
                self._add_alert(
                    invalid_transition_alert(
                        identity,
                        invalid,
                        event.event_id,
                        event.run_seq,
                        event.persisted_at,
                        prior_status,
                        event.step_id,
                    )
                )
        snapshot = freeze(identity, state)
        is_stale = snapshot.last_event_seq < stale_until
        stale_until = stale_until if is_stale else 0
        return msgspec.structs.replace(snapshot, stale=is_stale, stale_until=stale_until, resume=_ENCODE(state))

    def _add_gap_alert(self, identity: RunIdentity, last: int, found: int) -> None:
        self._add_alert(
            Alert(
                code="PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED",
                severity="P2",
                detail=f"Gap in the events: event {last} is followed by event {found}; re-read the run.",
                run_id=identity.run_id,
                subject=f"{last}-{found}",
                facts={"lastSeq": last, "nextSeq": found},
            )
        )

    def _add_alert(self, alert: Alert) -> None:
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
    """Create the alert for an illegal event that the fold found (layer 3 of the contract); one per run and event."""
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
    """Return the status that an event of this type leads to; None if it leads to none."""
    if event_type in STEP_TRANSITIONS:
        return STEP_TRANSITIONS[event_type][1]
    return RUN_TRANSITIONS[event_type][1] if event_type in RUN_TRANSITIONS else None
