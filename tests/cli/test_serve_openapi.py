"""The OpenAPI document and the service, held against each other by schemathesis."""

import subprocess
import sys
from pathlib import Path

import pytest
from serving import running

# Two of our refusals are not in schemathesis' own list.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 413, 415, 422]
"""
COMMAND = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


# Whether a model can tell two options apart is not in a schema, so valid questions may be refused.
SYSTEMONE = ("--include-path", "/v1/systemone", "--exclude-checks", "positive_data_acceptance")
OTHERS = ("--exclude-path", "/v1/systemone")


@pytest.mark.parametrize(
    ("token", "selection", "route"),
    [("", OTHERS, "/v1/classify"), ("a-token", OTHERS, "/v1/classify"), ("a-token", SYSTEMONE, "/v1/systemone")],
)
def test_generated_requests_are_answered_as_the_document_says(
    bundle: Path, tmp_path: Path, token: str, selection: tuple[str, ...], route: str
) -> None:
    """Valid requests are accepted, invalid ones are not, and every answer has a status and a shape that are listed."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    variables = {"SLM_RUN_SERVE_TOKEN": token} if token else {}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with running(bundle, "--quiet", "--max-texts", "8", variables=variables) as served:
        argv = ["--config-file", str(config), "run", f"{served.url}/openapi.json", "--checks", "all", *selection]
        argv += ["--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--seed", "1", "--no-color"]
        argv += [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *argv], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # The run was not vacuous: valid and invalid requests reached the endpoint.
        for status in ("200", "422"):
            assert served.metric(f'slm_run_requests_total{{route="{route}",status="{status}"}}', headers=headers) >= 1
