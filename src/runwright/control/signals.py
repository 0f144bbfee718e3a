"""Signals: what an operator may ask of a run, who may, and the record of each decision.

The order is always the same: find the run, check the payload, authorize, write the decision, apply it. If the
decision cannot be written, nothing is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from runwright.contract.engine import SignalRequest
from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.payloads import Approval, SignalDecided
from runwright.contract.plan import ParamType
from runwright.contract.transitions import ENDED, RunStatus, StepStatus
from runwright.core.expressions import mentioned_steps
from runwright.plans.params import fits, in_words
from runwright.plans.secrets import find_secrets

from .access import Actor

LARGEST = 64 * 1024


class SignalDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The record of what was decided on a signal."""

    signal_decision_id: str
    signal_id: str
    signal_type: str
    decision: str  # ACCEPTED, REJECTED, or REVISION_REQUIRED: a second person has to agree
    payload: dict[str, Any] = {}
    reason: str | None = None
    code: str | None = None
    policy_decision_id: str | None = None  # the rule by which it was decided
    audit: dict[str, Any] = {}
    engine_processed_at: str | None = None
    engine_result: str | None = None
    new_run_id: str | None = None


class _Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"): ...


Reason = msgspec.Meta(max_length=500)


class _MayGiveReason(_Payload, frozen=True):
    reason: str | None = None


class _Nothing(_Payload, frozen=True): ...


class _RetryStep(_Payload, frozen=True):
    step_id: str
    force: bool = False


class _SkipStep(_Payload, frozen=True):
    step_id: str
    reason: str | None = None


class _RetryRun(_Payload, frozen=True):
    reason: str | None = None
    force: bool = False


class _UpdateParams(_Payload, frozen=True):
    params: dict[str, Any]


class _Override(_Payload, frozen=True):
    step_id: str
    override: dict[str, Any]


class _Answer(_Payload, frozen=True):
    step_id: str | None = None
    answer: dict[str, Any] | None = None


class _Event(_Payload, frozen=True):
    name: str
    key: str | None = None
    payload: Any = None


class _EmergencyStop(_Payload, frozen=True):
    reason: str
    force_kill: bool = True


class _Escalate(_Payload, frozen=True):
    level: str
    note: str | None = None


class Rule(msgspec.Struct, frozen=True):
    role: str  # the least powerful that suffices
    payload: type[_Payload]
    reason_required: bool = False
    longest_reason: int = 500


RULES: dict[str, Rule] = {
    "PAUSE": Rule("Operator", _MayGiveReason),
    "RESUME": Rule("Operator", _Nothing),
    "CANCEL": Rule("Operator", _MayGiveReason),
    "RETRY_STEP": Rule("Engineer", _RetryStep),
    "SKIP_STEP": Rule("Engineer", _SkipStep),
    "RETRY_RUN": Rule("Engineer", _RetryRun),
    "UPDATE_PARAMS": Rule("Admin", _UpdateParams, reason_required=True),
    "INJECT_OVERRIDE": Rule("Admin", _Override, reason_required=True),
    "APPROVE": Rule("Operator", _Answer),
    "DENY": Rule("Operator", _Answer),
    "EVENT": Rule("Operator", _Event),
    "EMERGENCY_STOP": Rule("Admin", _EmergencyStop, longest_reason=1000),
    "ESCALATE_ALERT": Rule("System", _Escalate),
}
"""Each signal: who may send it, and what it must carry."""


class Refused(Exception):
    """A decision against a signal: recorded, and told to whoever sent it."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


def check_request(request: SignalRequest) -> Rule:
    """The payload's schema, before anybody is asked whether it may be done."""
    rule = RULES.get(request.signal_type)
    if rule is None:
        raise _invalid(f"There is no signal {request.signal_type!r}. There are: {', '.join(RULES)}.")
    if uuid4_bytes(request.signal_id) is None:
        raise _invalid("signalId must be a UUID v4, drawn by whoever sends the signal.")
    body = msgspec.json.encode(request)
    if len(body) > LARGEST:
        raise _invalid(f"A signal may have {LARGEST:,} bytes; this has {len(body):,}.")
    try:
        payload = msgspec.convert(request.payload, rule.payload)
    except msgspec.ValidationError as error:
        raise _invalid(f"{request.signal_type}: {error}.") from None
    for path, sentence in find_secrets(request.payload, ()):
        raise _invalid(f"{'.'.join(map(str, path))}: {sentence}")
    reason = getattr(payload, "reason", None)
    for text in (reason, request.reason):
        if text is not None and not 0 < len(text) <= rule.longest_reason:
            raise _invalid(f"A reason has 1 to {rule.longest_reason} characters.")
    if isinstance(payload, _Escalate) and payload.level not in ("INFO", "WARNING", "CRITICAL", "P1"):
        raise _invalid("level must be INFO, WARNING, CRITICAL or P1.")
    return rule


def _invalid(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, sentence)


def authorize(rule: Rule, request: SignalRequest, actor: Actor, question: Approval | None = None) -> str:
    """The role in which the actor may do this: the least powerful of theirs that suffices."""
    if request.signal_type in ("APPROVE", "DENY") and question is not None and question.approvers:
        role = actor.role_for("Admin" if actor.actor_id not in question.approvers else "Viewer")
        if role is not None:
            return role
        names = ", ".join(question.approvers)
        raise Refused(ErrorCode.AUTHZ_DENIED, f"Only {names} may answer this.")
    role = actor.role_for(rule.role)
    if role is None:
        has = ", ".join(actor.roles) or "none"
        raise Refused(ErrorCode.AUTHZ_DENIED, f"{request.signal_type} needs the role {rule.role}; you have {has}.")
    if rule.reason_required and not request.reason:
        raise Refused(ErrorCode.AUTHZ_REASON_REQUIRED, f"{request.signal_type} needs a reason. Give one with --reason.")
    return role


NOT_FOR_PLAYBOOKS = {
    "RETRY_STEP": "its policies say what is tried again",
    "SKIP_STEP": "its arcs say what is passed over",
    "INJECT_OVERRIDE": "a step may be visited many times, each time with the inputs that its arcs bring",
    "UPDATE_PARAMS": "its workload stays what it was when the run started",
}
"""What is not for them, and why."""


class RunView(msgspec.Struct, frozen=True):
    """As much of a run as a decision on a signal needs."""

    status: RunStatus
    steps: dict[str, StepStatus]
    plan_steps: dict[str, tuple[frozenset[str], frozenset[str] | None]]  # inputs, and the steps it mentions
    params: dict[str, ParamType]
    questions: dict[str, Approval] = {}  # what people are asked now, by step
    is_playbook: bool = False


def check_state(request: SignalRequest, view: RunView) -> None:
    """Whether the signal makes sense for the run as it is now."""
    kind = request.signal_type
    if kind == "RETRY_RUN":
        if view.status not in ENDED:
            raise Refused(ErrorCode.RUN_NOT_TERMINAL, "The run has not ended. Cancel it, or retry its failed steps.")
        return
    if view.status in ENDED:
        raise Refused(ErrorCode.RUN_TERMINAL, f"The run is {view.status}; `runwright rerun` makes a new one from it.")
    if view.is_playbook and kind in NOT_FOR_PLAYBOOKS:
        raise Refused(ErrorCode.CAPABILITY_NOT_SUPPORTED, f"A playbook takes no {kind}: {NOT_FOR_PLAYBOOKS[kind]}.")
    step_id = request.payload.get("stepId")
    if kind in ("APPROVE", "DENY"):
        check_answer(request, view.questions)
        return
    if isinstance(step_id, str):
        _check_step(kind, step_id, bool(request.payload.get("force")), view)
    if kind == "INJECT_OVERRIDE" and isinstance(step_id, str):
        _check_override(request.payload["override"], *view.plan_steps[step_id])
    if kind == "UPDATE_PARAMS":
        for name, value in request.payload["params"].items():
            if name not in view.params:
                raise Refused(ErrorCode.SIGNAL_INVALID_PAYLOAD, f"The plan has no parameter {name!r}.")
            if value is not None and not fits(value, view.params[name]):
                sentence = f"The parameter {name!r} is {in_words(view.params[name])}."
                raise Refused(ErrorCode.SIGNAL_INVALID_PAYLOAD, sentence)


def question_of(request: SignalRequest, questions: dict[str, Approval]) -> Approval | None:
    """What an answer is to, as far as that is clear."""
    step_id = request.payload.get("stepId")
    if step_id is None:
        return next(iter(questions.values())) if len(questions) == 1 else None
    return questions.get(step_id)


def check_answer(request: SignalRequest, questions: dict[str, Approval]) -> None:
    """Whether this answers something that is asked."""
    step_id = request.payload.get("stepId")
    if step_id is None:
        if len(questions) != 1:
            known = f"Several steps wait for one: {', '.join(questions)}. Name the step." if questions else ""
            raise Refused(ErrorCode.STEP_NOT_FOUND, known or "No step of this run waits for an approval.")
        step_id = next(iter(questions))
    question = questions.get(step_id)
    if question is None:
        raise Refused(ErrorCode.STEP_NOT_FOUND, f"The step {step_id!r} does not wait for an approval.")
    if request.signal_type == "APPROVE":
        for sentence in answer_troubles(question.fields or {}, request.payload.get("answer") or {}):
            raise Refused(ErrorCode.SIGNAL_INVALID_PAYLOAD, sentence)


def answer_troubles(fields: dict[str, Any], answer: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an answer, given the fields that were asked for."""
    for name in answer:
        if name not in fields:
            known = f"It has: {', '.join(fields)}." if fields else "It has none."
            yield f"The approval has no field {name!r}. {known}"
    for name, field in fields.items():
        value = answer.get(name)
        if value is None:
            if field.get("required", True):
                yield f"The approval asks for {name!r} ({in_words(ParamType(field['type']))}). Give it with --field."
        elif not fits(value, ParamType(field["type"])):
            yield f"The field {name!r} is {in_words(ParamType(field['type']))}."
        elif field.get("choices") and value not in field["choices"]:
            yield f"The field {name!r} is one of {', '.join(map(str, field['choices']))}."


def _check_override(override: dict[str, Any], inputs: frozenset[str], mentions: frozenset[str] | None) -> None:
    unknown = sorted(override.keys() - inputs)
    if unknown:
        known = ", ".join(sorted(inputs))
        raise Refused(ErrorCode.SIGNAL_INVALID_PAYLOAD, f"The step has no input {unknown[0]!r}. It has: {known}.")
    try:
        mentioned = mentioned_steps([override])
    except RunwrightError as error:
        raise Refused(ErrorCode.SIGNAL_INVALID_PAYLOAD, error.detail) from None
    if mentions is not None and (mentioned is None or not mentioned <= mentions):
        raise Refused(
            ErrorCode.SIGNAL_INVALID_PAYLOAD,
            "An override may use results of steps that the step itself mentions; no others are kept for it.",
        )


def _check_step(kind: str, step_id: str, force: bool, view: RunView) -> None:
    if step_id not in view.plan_steps:
        raise Refused(ErrorCode.STEP_NOT_FOUND, f"The plan has no step {step_id!r}.")
    status = view.steps.get(step_id, StepStatus.PENDING)
    if status is StepStatus.RUNNING:
        raise Refused(ErrorCode.STEP_NOT_TERMINAL, f"Step {step_id!r} is running.")
    if kind == "RETRY_STEP" and status is StepStatus.PENDING:
        raise Refused(ErrorCode.STEP_NOT_TERMINAL, f"Step {step_id!r} has not run yet.")
    if status in (StepStatus.SUCCESS, StepStatus.SKIPPED) and not (kind == "RETRY_STEP" and force):
        more = " Add --force to run it again." if kind == "RETRY_STEP" else ""
        raise Refused(ErrorCode.STEP_TERMINAL, f"Step {step_id!r} has ended: {status}.{more}")


def event_payload(request: SignalRequest, decision: SignalDecision, role: str, actor: Actor) -> SignalDecided:
    return SignalDecided(
        signal_decision_id=decision.signal_decision_id,
        signal_id=request.signal_id,
        signal_type=request.signal_type,
        payload=request.payload,
        actor_id=actor.actor_id,
        actor_role=role,
        source=actor.source,
        source_ip=actor.source_ip,
        user_agent=actor.user_agent,
        reason=decision.reason if decision.code else request.reason,
        code=decision.code,
        policy_decision_id=decision.policy_decision_id,
    )


def run_made_by(signal_id: str) -> str:
    """The id of the run that a signal makes, always the same: made twice it is made once."""
    return _derived(f"run made by {signal_id}")


def decision_event_id(run_id: str, signal_id: str) -> str:
    """The id of the event that holds the decision on a signal, whatever was decided: no log takes two of them."""
    return _derived(f"decision on {signal_id} in {run_id}")


def revision_event_id(run_id: str, signal_id: str) -> str:
    """The id of the event that says that a second person has to agree."""
    return _derived(f"revision of {signal_id} in {run_id}")


def _derived(text: str) -> str:
    return str(UUID(bytes=sha256(text.encode()).digest()[:16], version=4))
