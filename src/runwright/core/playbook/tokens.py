"""Admission of tokens: a step that has tokens is visited once its policy admits them."""

from __future__ import annotations

from typing import Any

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.paths import EntityPath
from runwright.contract.playbook import MAX_VISITS
from runwright.contract.refs import ErrorInfo
from runwright.core.expressions.template import is_true
from runwright.core.fold.playbook_state import RoutingToken
from runwright.core.graph.playbook_graph import PlaybookStep
from runwright.core.scheduling.stored_values import MissingValues

from .context import PlaybookContext
from .event_values import check_event_value


class TokenAdmission:
    def __init__(self, playbook: PlaybookContext) -> None:
        self._playbook = playbook

    def admit_waiting(self) -> None:
        """Admit every token that can be admitted, in the order in which the steps are declared."""
        state, graph = self._playbook.state, self._playbook.graph
        if not state.tokens:
            return
        active = {*state.tokens, *(path.partition("@")[0] for path in state.visits)}
        for name in sorted(state.tokens, key=graph.positions.__getitem__):
            step = graph.steps[name]
            while (tokens := state.tokens.get(name)) and self._can_admit(name, step, active):
                admitted = list(tokens) if step.join_upstream else tokens[:1]  # without a join each token is a visit
                if not self.admit(step, name, admitted):
                    break
                self._playbook.run.mark_append_boundary()
                if self._playbook.run.cost.is_spent:
                    return

    def _can_admit(self, name: str, step: PlaybookStep, active: set[str]) -> bool:
        """Whether tokens of a step may become a visit: a join waits while a step upstream of it is active."""
        if name == self._playbook.graph.playbook.final_step or self.is_denied(name):
            return False
        return not step.join_upstream & active

    def is_denied(self, name: str) -> bool:
        """Whether all tokens of a step were denied, and `ctx` has not changed since."""
        state = self._playbook.state
        denied = state.denied_tokens.get(name)
        if denied is None or denied.ctx_version != state.ctx_version:
            return False
        return denied.count >= len(state.tokens.get(name, ()))

    def admit(self, step: PlaybookStep, name: str, tokens: list[RoutingToken], *, final: bool = False) -> bool:
        """Evaluate the admission policy of a step, and schedule a visit if it allows one. False if values must be
        fetched first."""
        run, state = self._playbook.run, self._playbook.state
        number = state.visit_counts.get(name, 0) + 1
        path = str(EntityPath(name, number))
        args = {key: value for token in tokens for key, value in token.args.items()}
        try:
            rule, allow, error = self._evaluate(step, args, tokens)
        except MissingValues as missing:
            run.missing_values |= missing.refs
            return False
        if number > MAX_VISITS:
            message = f"Visit limit of {MAX_VISITS:,} exceeded: the playbook probably loops forever."
            allow, error = False, ErrorInfo("VISIT_LIMIT", message, retryable=False, category="plan")
        ordinal = state.admission_counts.get(path, 0) + 1
        evaluated = payloads.PolicyAdmitEvaluated(allow, rule, error, None if allow else len(tokens))
        run.emit("PolicyAdmitEvaluated", path, ordinal, evaluated)
        if allow:
            queue = step.queue if step.route.loop is None else None
            scheduled = payloads.StepScheduled(queue, args or None, len(tokens), final or None)
            run.emit("StepScheduled", path, 1, scheduled)
        return True

    def _evaluate(
        self, step: PlaybookStep, args: dict[str, Any], tokens: list[RoutingToken]
    ) -> tuple[int | None, bool, ErrorInfo | None]:
        """The index of the rule that matched, whether it allows the visit, and the error of a broken policy."""
        try:
            check_event_value("The arguments of the arcs to this step", args)
            if step.route.admit:
                scope = self._playbook.scope.of_step(step.admit_mentions, args)
                scope["event"] = _cause(tokens)
                for index, rule in enumerate(step.route.admit):
                    if rule.when is None or is_true(rule.when, scope):
                        return index, rule.allow, None
        except RunwrightError as problem:
            return None, False, ErrorInfo(problem.code, problem.detail, retryable=False, category="plan")
        return None, True, None


def _cause(tokens: list[RoutingToken]) -> dict[str, Any]:
    """The event that led to the last token."""
    last = tokens[-1] if tokens else RoutingToken({})
    return {"name": last.event, "step": last.source, "payload": {}}
