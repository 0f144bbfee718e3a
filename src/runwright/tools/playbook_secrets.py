"""The `secrets` of playbooks: makes sure that secrets are there, and gives them names that later tasks can use.

What it gives back are references, `{secret: NAME}`: where one stands as the whole of a later task's input, that task
is given the value. The value itself is never in a result, so it is never in the log.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.contract.playbook import SECRETS

from .base import Lane, StepContext


class PlaybookSecretsInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    names: dict[str, str]
    """What each is called from here on, and the name of the secret."""
    values: dict[str, str] = {}
    """The same, resolved on the way here: whoever got this far has them all."""


class PlaybookSecretsTool:
    kind = SECRETS
    inputs = PlaybookSecretsInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        return None if inputs.get("names") else "Say which secrets: `names`, a list, or `map`, a mapping."

    def lane(self, inputs: PlaybookSecretsInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.INLINE

    def run(self, inputs: PlaybookSecretsInputs, context: StepContext) -> Any:  # noqa: ARG002
        return {name: {"secret": secret} for name, secret in inputs.names.items()}
