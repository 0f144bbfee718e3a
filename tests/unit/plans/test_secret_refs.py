"""Plans with inputs that look like secrets are refused."""

from __future__ import annotations

import pytest

from support.plan_kinds import problems_of

PEM = "-----BEGIN RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "inputs",
    [
        "{password: hunter2}", "{db_password: hunter2}", "{dbPassword: hunter2}", "{API_KEY: abc}", "{apiKey: abc}",
        "{x-api-key: abc}", "{token: abc}", "{GITHUB_TOKEN: abc}", "{client_secret: abc}", "{secretKey: abc}",
        "{Authorization: Bearer abc}", "{tokens: {token: abc}}", "{secret: a, other: b}", "{passwords: [{password: a}]}",
        "{password: [a, b]}",
        "{a: AKIAIOSFODNN7EXAMPLE}", "{a: [x, 'key=ASIAIOSFODNN7EXAMPLE;']}",
        "{a: ghp_" + "a1" * 18 + "}", "{a: 'curl -H \"x: github_pat_" + "a1" * 30 + "\"'}", "{a: xoxb-1234567890-abc}",
        "{a: sk_live_" + "a1" * 12 + "}", "{a: glpat-" + "a1" * 10 + "}", "{a: AIza" + "b" * 35 + "}",
        f"{{a: '{PEM}'}}", "{a: 'postgresql://me:hunter2@db/orders'}",
        "{a: \"{{ 'AKIAIOSFODNN7EXAMPLE' }}\"}",
    ],
)  # fmt: skip
def test_literal_secrets_are_refused_and_not_quoted_in_errors(inputs: str) -> None:
    for text in (f"plan: p\nsteps: [{{id: a, noop: {{result: {inputs}}}}}]", f"plan: p\nparams: {{x: {inputs}}}\nsteps: [{{id: a, noop: }}]"):  # fmt: skip
        found = problems_of(text)
        assert found
        for problem in found:
            assert problem.split(" ")[0].startswith("test.yaml:2:")
            assert " INVALID_STEP_SCHEMA " in problem and "{secret: NAME}" in problem
            assert "hunter2" not in problem and "EXAMPLE" not in problem


@pytest.mark.parametrize(
    "inputs",
    [
        "{secret: DB_PASSWORD}", "{password: {secret: DB_PASSWORD}}", "{password: ''}", "{password: null}",
        "{token: \"{{ steps.login.result.token }}\"}", "{TOKEN: $TOKEN}", "{TOKEN: '${TOKEN}'}", "{max_tokens: 500}",
        "{password: 5}", "{passwordFile: /run/secrets/db}", "{token_url: 'https://x/token'}", "{pageToken: abc}",
        "{a: 'postgresql://db/orders'}", "{a: 'postgresql://me@db/orders'}", "{a: 'https://example.org:8080/x@y'}",
        "{a: \"postgresql://me:{{ params.p }}@db/orders\"}", "{a: 'echo sk-1 AKIA ghp_'}", "{compass: north}",
    ],
)  # fmt: skip
def test_secret_references_and_harmless_values_are_accepted(inputs: str) -> None:
    text = f"plan: p\nparams: {{p: 1}}\nsteps: [{{id: login, noop: }}, {{id: a, noop: {{result: {inputs}}}}}]"
    assert problems_of(text) == []


def test_a_secret_in_the_main_input_is_reported_with_its_line() -> None:
    [problem] = problems_of("plan: p\nsteps:\n  - id: a\n    shell: curl https://me:hunter2@example.org\n")
    assert problem.startswith("test.yaml:4:12: INVALID_STEP_SCHEMA ")
