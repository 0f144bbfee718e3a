"""The `secrets` task of playbooks: checks that secrets exist, and names them for later tasks.

Its result holds references, `{secret: NAME}`. A later task whose whole input is such a reference gets the value. The
value itself is never in a result, so it is never in the log.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import Step
from runwright.contract.playbook import SECRETS
from runwright.tools.base import Lane, StepContext


class PlaybookSecretsInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    names: dict[str, str]
    """Name in later tasks -> name of the secret."""
    values: dict[str, str] = {}
    """Values of the secrets, resolved before the task runs. A missing secret fails the task earlier."""


class PlaybookSecretsTool:
    kind = SECRETS
    inputs = PlaybookSecretsInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        return None if inputs.get("names") else "Set `names` (a list of secrets) or `map` (a mapping)."

    def lane(self, inputs: PlaybookSecretsInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.INLINE

    def run(self, inputs: PlaybookSecretsInputs, context: StepContext) -> Any:  # noqa: ARG002
        return {name: {"secret": secret} for name, secret in inputs.names.items()}
