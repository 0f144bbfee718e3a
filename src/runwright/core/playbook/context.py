"""PlaybookContext: the run, the compiled playbook and its expression scope, shared by the parts of the scheduler."""

from __future__ import annotations

from runwright.contract.paths import EntityPath
from runwright.core.fold.playbook_state import PipelineState, PlaybookState, pipeline_key
from runwright.core.graph.playbook_graph import PlaybookGraph, PlaybookStep
from runwright.core.scheduling.context import SchedulingContext

from .scope import PlaybookScope


class PlaybookContext:
    def __init__(self, run: SchedulingContext, graph: PlaybookGraph) -> None:
        self.run = run
        self.graph = graph
        self.scope = PlaybookScope(graph, run.values, run.execution, run.run, run.cost)

    @property
    def state(self) -> PlaybookState:
        assert self.run.execution.playbook is not None
        return self.run.execution.playbook

    @property
    def is_started(self) -> bool:
        return self.run.execution.playbook is not None

    def step(self, name: str) -> PlaybookStep:
        return self.graph.steps[name]

    def step_of(self, path: EntityPath) -> PlaybookStep:
        return self.graph.steps[path.step]

    def pipeline_of(self, path: EntityPath) -> PipelineState | None:
        """The pipeline of the visit or iteration that a path belongs to."""
        play = self.run.execution.playbook
        return None if play is None else play.pipelines.get(pipeline_key(path))
